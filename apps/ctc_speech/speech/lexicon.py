"""Words as phones: a pronunciation dictionary in the format of CMUdict."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from linattn_core.errors import expected, quote
from speech.sources import require_file, text_lines

Phones = tuple[str, ...]

_SHOWN_WORDS = 20  # of the missing ones in an error
_ALTERNATIVE = re.compile(r"\(\d+\)$")
_STRESS = re.compile(r"^([A-Z]+)[012]$")


class Lexicon:
    """The pronunciations of words, without regard to case; stress is left out.

    Args:
        pronunciations: by word, at least one each; the first is the usual one.
    """

    def __init__(self, pronunciations: Mapping[str, Sequence[Phones]]) -> None:
        self._pronunciations = {word.upper(): tuple(of) for word, of in pronunciations.items()}
        phones = {p for of in self._pronunciations.values() for one in of for p in one}
        self.inventory: Phones = tuple(sorted(phones))

    def __len__(self) -> int:
        return len(self._pronunciations)

    def __contains__(self, word: str) -> bool:
        return word.upper() in self._pronunciations

    def words(self) -> list[str]:
        """All words, sorted."""
        return sorted(self._pronunciations)

    def alternatives(self, word: str) -> tuple[Phones, ...]:
        """All pronunciations of a word that is there."""
        return self._pronunciations[word.upper()]

    def phones(self, words: Iterable[str]) -> Phones:
        """The usual pronunciations, one after another.

        Raises:
            ValueError: naming the words that are missing.
        """
        words = list(words)
        self.require(words)
        return tuple(phone for word in words for phone in self.alternatives(word)[0])

    def missing(self, words: Iterable[str]) -> list[str]:
        """The words without a pronunciation, each once."""
        return sorted({word for word in words if word not in self})

    def require(self, words: Iterable[str]) -> None:
        """Refuses words without a pronunciation.

        Raises:
            ValueError: naming all of them, or the first twenty and how many there are.
        """
        missing = self.missing(words)
        if missing:
            listed = ", ".join(quote(word) for word in missing[:_SHOWN_WORDS])
            more = f" and {len(missing) - _SHOWN_WORDS} more" * (len(missing) > _SHOWN_WORDS)
            wanted = f"a pronunciation of {len(missing)} words"
            advice = "add them, or leave out their utterances with --bad-input skip"
            raise ValueError(expected("the lexicon", wanted, f"none of {listed}{more}", advice))


def read_lexicon(path: Path) -> Lexicon:
    """A dictionary file: on each line a word and its phones, with blanks between.

    Further pronunciations of a word stand as WORD(2), or as the word again. The digits of stress
    are dropped. Lines that begin with ;;; and what follows a # after a blank are comments. The
    file is in UTF-8 or latin-1.

    Raises:
        ValueError: naming the line without phones, or an empty dictionary.
        OSError: no such file.
    """
    require_file(path, "a lexicon in CMUdict format")
    try:
        lines = text_lines(path)
    except ValueError:  # older editions of CMUdict have accents in latin-1
        lines = path.read_text(encoding="latin-1").split("\n")
    return parse_lexicon(lines, str(path))


def parse_lexicon(lines: Iterable[str], name: str) -> Lexicon:
    """The lexicon on `lines`, as `read_lexicon` describes them; `name` is for errors."""
    pronunciations: dict[str, list[Phones]] = {}
    for number, line in enumerate(lines, start=1):
        if line.startswith(";;;") or not line.strip():
            continue
        word, *phones = line.partition(" #")[0].split()
        if not phones:
            where = f"{name}, line {number}"
            raise ValueError(expected(where, "a word and its phones", quote(line)))
        known = pronunciations.setdefault(_ALTERNATIVE.sub("", word).upper(), [])
        known.append(tuple(_STRESS.sub(r"\1", phone) for phone in phones))
    if not pronunciations:
        raise ValueError(expected(name, "at least one word", "none"))
    return Lexicon(pronunciations)
