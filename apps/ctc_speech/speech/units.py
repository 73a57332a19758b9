"""What the classes of a recognizer stand for: phones, characters, or pieces of words."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from linattn_core.errors import expected, quote
from speech.lexicon import Lexicon
from speech.words import BOUNDARY, FoundWord, find_spelled_words

Labels = tuple[str, ...]

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


def choose_units(kind: str, lexicon: Lexicon | None, said: Sequence[Sequence[str]]) -> Units:
    """The labels of `kind`.

    Args:
        lexicon: for phones; without one, what was said is phones.
        said: the words of each training utterance.
    """
    if kind == "phones":
        spoken = {phone for words in said for phone in words}
        return Units(kind, tuple(sorted(spoken)) if lexicon is None else lexicon.inventory)
    letters = {letter for words in said for word in words for letter in word}
    # A text may have none of these.
    letters = {x for x in letters if x != BOUNDARY and unicodedata.category(x) not in _UNWRITTEN}
    inventory = tuple(sorted(letters | {BOUNDARY}))
    if kind != "characters":
        least, size = len(inventory), int(kind.partition(":")[2])
        if size < least:
            wanted = f"at least the {least} characters of the training part"
            raise ValueError(expected("--units", f"{wanted}, as bpe:{least}", kind))
        inventory = _learn_pieces([x for x in said if letters.issuperset("".join(x))], size)
    return Units(kind, inventory)


@dataclass(frozen=True)
class Spelling:
    """How the words of transcripts become labels.

    Attributes:
        parts, owner: what every word has to consist of, and what has them; for errors.
        missing: the parts of words that are not there.
        labels: the labels of words of which nothing is missing.
    """

    parts: str
    owner: str
    missing: Callable[[Iterable[str]], list[str]]
    labels: Callable[[Sequence[str]], Labels]


def build_spelling(units: Units, lexicon: Lexicon | None) -> Spelling:
    """Words in these labels, of a corpus or of a run.

    Raises:
        ValueError: a lexicon of other phones.
    """
    if not units.spell and lexicon is not None:
        if lexicon.inventory != units.inventory:
            wanted, got = (f"{len(x.inventory)} phones" for x in (units, lexicon))
            advice = "give the --lexicon of its training, if any"
            raise ValueError(expected("the lexicon", f"the {wanted} of the run", got, advice))
        return Spelling("words", "the lexicon", lexicon.missing, lexicon.phones)
    known = set(units.inventory) - {BOUNDARY}

    def missing(words: Iterable[str]) -> list[str]:
        parts = (x for word in words for x in word) if units.spell else words
        return [part for part in parts if part not in known]

    def join(words: Sequence[str]) -> Labels:
        return tuple(BOUNDARY.join(words))

    if not units.spell:
        return Spelling("phones", "the training part", missing, tuple)
    labels = join if units.kind == "characters" else _cut_into(units.inventory)
    return Spelling("characters", "the training part", missing, labels)


def _learn_pieces(said: Sequence[Sequence[str]], size: int) -> Labels:
    """At most `size` pieces by byte-pair encoding, in the order in which they were found."""
    try:
        from tokenizers import trainers
    except ImportError:
        wanted, advice = "the library tokenizers", "pip install tokenizers"
        raise ValueError(expected("--units bpe:N", wanted, "none", advice)) from None
    tokenizer = _tokenizer({}, [])
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False)
    tokenizer.train_from_iterator(map(" ".join, said), trainer)
    tokens: dict[str, int] = tokenizer.get_vocab()
    return tuple(sorted(tokens, key=tokens.__getitem__))


def _cut_into(pieces: Labels) -> Callable[[Sequence[str]], Labels]:
    """What cuts words into pieces, which are joined in the order in which they were found."""
    known = set(pieces)
    halves = ((x[:at], x[at:]) for x in pieces for at in range(1, len(x)))
    merges = [(left, right) for left, right in halves if left in known and right in known]
    tokenizer = _tokenizer({piece: place for place, piece in enumerate(pieces)}, merges)
    return lambda words: tuple(tokenizer.encode(" ".join(words), add_special_tokens=False).tokens)


def _tokenizer(places: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE(vocab=places, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BOUNDARY)
    return tokenizer
