"""Words as phones: a pronunciation dictionary in the format of CMUdict."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from linattn_core.errors import expected, quote

Phones = tuple[str, ...]

_ALTERNATIVE = re.compile(r"\(\d+\)$")
_STRESS = re.compile(r"^([A-Z]+)[012]$")


@dataclass(frozen=True)
class Lexicon:
    """The usual pronunciation of each word, without regard to case and without stress.

    Attributes:
        pronunciations: by word in capitals.
        inventory: the phones of all pronunciations, also of those that are not the usual ones.
    """

    pronunciations: dict[str, Phones]
    inventory: Phones

    def phones(self, words: Iterable[str]) -> Phones:
        """The usual pronunciations of words that are there, one after another."""
        return tuple(phone for word in words for phone in self.pronunciations[word.upper()])

    def missing(self, words: Iterable[str]) -> list[str]:
        """The words without a pronunciation."""
        return [word for word in words if word.upper() not in self.pronunciations]


def read_lexicon(path: Path) -> Lexicon:
    """A dictionary file: on each line a word and its phones, with blanks between.

    Further pronunciations of a word stand as WORD(2), or as the word again. The digits of stress
    are dropped. Lines that begin with ;;; and what follows a # after a blank are comments. The
    file is in UTF-8 or latin-1.
    """
    require_file(path, "a lexicon in CMUdict format")
    try:
        lines = read_lines(path)
    except ValueError:  # older editions of CMUdict have accents in latin-1
        lines = path.read_text(encoding="latin-1").split("\n")
    return parse_lexicon(lines, str(path))


def parse_lexicon(lines: Iterable[str], name: str) -> Lexicon:
    """The lexicon on `lines`, as `read_lexicon` describes them; `name` is for errors."""
    pronunciations: dict[str, Phones] = {}
    inventory: set[str] = set()
    for number, line in enumerate(lines, start=1):
        if line.startswith(";;;") or not line.strip():
            continue
        word, *spelled = line.partition(" #")[0].split()
        if not spelled:
            where = f"{name}, line {number}"
            raise ValueError(expected(where, "a word and its phones", quote(line)))
        phones = tuple(_STRESS.sub(r"\1", phone) for phone in spelled)
        pronunciations.setdefault(_ALTERNATIVE.sub("", word).upper(), phones)
        inventory.update(phones)
    if not pronunciations:
        raise ValueError(expected(name, "at least one word", "none"))
    return Lexicon(pronunciations, tuple(sorted(inventory)))


def require_file(path: Path, wanted: str, advice: str = "") -> None:
    """Refuses a path that is no file."""
    if not path.is_file():
        got = "a folder" if path.is_dir() else "no file"
        raise FileNotFoundError(expected(str(path), wanted, got, advice))


def read_lines(path: Path) -> list[str]:
    """The lines of a text file in UTF-8."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(expected(str(path), "text in UTF-8", error)) from None
    # Not splitlines: it also cuts at characters that words may have.
    return text.removesuffix("\n").split("\n") if text else []
