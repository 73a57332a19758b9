"""What the classes of a recognizer stand for: phones, characters, or pieces of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from linattn_core.errors import expected, quote
from speech.lexicon import Lexicon
from speech.words import BOUNDARY, FoundWord, find_spelled_words

Labels = tuple[str, ...]
Spell = Callable[[Sequence[str]], Labels]

_KINDS = re.compile(r"phones|characters|bpe:[1-9][0-9]{0,4}")
_NOUNS = {"phones": "phone", "characters": "character", "bpe": "piece"}
_UNWRITTEN = ("Cc", "Cs")  # Unicode's categories of control characters and halves of pairs


@dataclass(frozen=True)
class Units:
    """The labels of a recognizer: the table of its classes.

    Attributes:
        kind: as --units takes it.
        inventory: the labels of the classes 1, 2, ...; 0 is the blank.
    """

    kind: str
    inventory: Labels

    @property
    def noun(self) -> str:
        """What a label is called."""
        return _NOUNS[self.kind.partition(":")[0]]

    @property
    def spell(self) -> bool:
        """Whether labels are the letters of words."""
        return self.kind != "phones"

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.inventory, start=1)}

    def numbers(self, labels: Iterable[str]) -> list[int]:
        """The classes of labels."""
        return [self._numbers[label] for label in labels]

    def labels(self, numbers: Iterable[int]) -> Labels:
        """The labels of classes."""
        return tuple(self.inventory[number - 1] for number in numbers)

    def words(self, labels: Sequence[str]) -> list[FoundWord]:
        """The words that labels spell; none of phones."""
        return find_spelled_words(labels) if self.spell else []

    def text(self, labels: Sequence[str]) -> str:
        """On one line: the words that labels spell, or the phones."""
        return " ".join([x.word for x in self.words(labels)] if self.spell else labels)


def name_rate(noun: str) -> str:
    """The metric that counts errors of labels or of words."""
    return "phoneme_error_rate" if noun == "phone" else f"{noun}_error_rate"


def check_units(kind: str | None) -> None:
    """Refuses a value of --units that names none."""
    if kind is not None and not _KINDS.fullmatch(kind):
        wanted = "phones, characters or bpe:N, N at most 99999"
        raise ValueError(expected("--units", wanted, quote(kind)))


@dataclass(frozen=True)
class Spelling:
    """How the words of transcripts become labels.

    Attributes:
        parts, owner: what every word has to consist of, and what has them; for errors.
        missing: the parts of words that are not there.
        labels: the labels of words of which nothing is missing.
    """

    units: Units
    parts: str
    owner: str
    missing: Callable[[Iterable[str]], list[str]]
    labels: Spell


def build_spelling(kind: str, lexicon: Lexicon | None, said: Sequence[Sequence[str]]) -> Spelling:
    """The labels of `kind`.

    Args:
        lexicon: for phones; without one, what was said is phones.
        said: the words of each training utterance, from which characters and pieces are taken.
    """
    if kind != "phones":
        return _build_letters(kind, said)
    if lexicon is not None:
        units = Units(kind, lexicon.inventory)
        return Spelling(units, "words", "the lexicon", lexicon.missing, lexicon.phones)
    known = {phone for words in said for phone in words}

    def missing(words: Iterable[str]) -> list[str]:
        return [phone for phone in words if phone not in known]

    units = Units(kind, tuple(sorted(known)))
    return Spelling(units, "phones", "the training part", missing, tuple)


def _build_letters(kind: str, said: Sequence[Sequence[str]]) -> Spelling:
    letters = {letter for words in said for word in words for letter in word}
    # A text may have none of these.
    letters = {x for x in letters if x != BOUNDARY and unicodedata.category(x) not in _UNWRITTEN}

    def missing(words: Iterable[str]) -> list[str]:
        return [letter for word in words for letter in word if letter not in letters]

    def join(words: Sequence[str]) -> Labels:
        return tuple(BOUNDARY.join(words))

    inventory = tuple(sorted(letters | {BOUNDARY}))
    if kind == "characters":
        spelled: tuple[Labels, Spell] = inventory, join
    else:
        least, size = len(inventory), int(kind.partition(":")[2])
        if size < least:
            wanted = f"at least the {least} characters of the training part"
            raise ValueError(expected("--units", f"{wanted}, as bpe:{least}", kind))
        spelled = _learn_pieces([words for words in said if not missing(words)], size)
    units = Units(kind, spelled[0])
    return Spelling(units, "characters", "the training part", missing, spelled[1])


def _learn_pieces(said: Sequence[Sequence[str]], size: int) -> tuple[Labels, Spell]:
    """At most `size` pieces by byte-pair encoding, and what cuts words into them."""
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError:
        wanted, advice = "the library tokenizers", "pip install tokenizers"
        raise ValueError(expected("--units bpe:N", wanted, "none", advice)) from None
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BOUNDARY)
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    tokenizer.train_from_iterator(map(" ".join, said), trainer)
    tokens: dict[str, int] = tokenizer.get_vocab()

    def cut(words: Sequence[str]) -> Labels:
        return tuple(tokenizer.encode(" ".join(words), add_special_tokens=False).tokens)

    return tuple(sorted(tokens, key=tokens.__getitem__)), cut
