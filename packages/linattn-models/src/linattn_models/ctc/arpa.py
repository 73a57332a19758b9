"""ARPA files: n-grams as lines of text, the common format of tools for language models."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from linattn_core.errors import expected, quote
from linattn_models.basics.files import replace_file

START_WORD, END_WORD, UNKNOWN_WORD = "<s>", "</s>", "<unk>"
ZERO = -99.0
"""The number that ARPA files write for log10 of 0."""
Words = tuple[str, ...]
_COUNT = re.compile(r"ngram\s+(\d{1,9})\s*=\s*(\d{1,18})")


class Entry(NamedTuple):
    """log10 p of an n-gram's last word given the others, and log10 of its backoff."""

    log10: float
    backoff: float = 0.0


def write_arpa(path: Path, entries: Mapping[Words, Entry]) -> None:
    """Writes the entries, sorted and with all digits; on an error the old file stays."""
    orders = range(1, max(map(len, entries)) + 1)
    by_order = {n: sorted(words for words in entries if len(words) == n) for n in orders}
    lines = ["\\data\\", *(f"ngram {n}={len(by_order[n])}" for n in orders), ""]
    for n in orders:
        lines.append(f"\\{n}-grams:")
        for words in by_order[n]:
            log10, backoff = entries[words]
            column = f"\t{backoff!r}" if backoff else ""
            lines.append(f"{log10!r}\t{' '.join(words)}{column}")
        lines.append("")
    replace_file(path, "\n".join([*lines, "\\end\\", ""]).encode())


def read_arpa(path: Path) -> dict[Words, Entry]:
    """The entries of a file."""
    try:
        lines = _lines(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError(expected(str(path), "an ARPA file in UTF-8", error)) from None
    reader = _Reader(path, lines)
    reader.skip_comments()
    counts = reader.counts()
    entries: dict[Words, Entry] = {}
    for order, count in enumerate(counts, start=1):
        reader.require(f"\\{order}-grams:")
        for _ in range(count):
            words, entry = reader.entry(order)
            if words in entries:
                raise reader.damage_error("each n-gram once")
            entries[words] = entry
    reader.require("\\end\\")
    return entries


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """The lines that are not empty, with their numbers."""
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, line.strip()


class _Reader:
    """Reads a file line by line, and makes errors that name the current line."""

    def __init__(self, path: Path, lines: Iterator[tuple[int, str]]) -> None:
        self.path, self.lines = path, lines
        self.number, self.line = 0, ""

    def next(self) -> str:
        """The next line; "" at the end of the file."""
        self.number, self.line = next(self.lines, (self.number + 1, ""))
        return self.line

    def damage_error(self, wanted: str) -> ValueError:
        got = quote(self.line) if self.line else "the end of the file"
        advice = "the ARPA file is damaged"
        return ValueError(expected(f"{self.path}, line {self.number}", wanted, got, advice))

    def skip_comments(self) -> None:
        """Skips the comments that may come before the data."""
        while self.next() != "\\data\\":
            if not self.line:
                raise self.damage_error("\\data\\")

    def counts(self) -> list[int]:
        """The numbers of n-grams of order 1, 2, ...; the line after them is read again next."""
        counts: list[int] = []
        while match := _COUNT.fullmatch(self.next()):
            if int(match[1]) != len(counts) + 1:
                raise self.damage_error(f"the number of {len(counts) + 1}-grams")
            counts.append(int(match[2]))
        if not counts:
            raise self.damage_error("ngram 1=...")
        self.lines = _before((self.number, self.line), self.lines)
        return counts

    def require(self, wanted: str) -> None:
        if self.next() != wanted:
            raise self.damage_error(wanted)

    def entry(self, order: int) -> tuple[Words, Entry]:
        fields = self.next().split()
        wanted = f"log10 p, {order} words and perhaps log10 of the backoff"
        if len(fields) not in (order + 1, order + 2):
            raise self.damage_error(wanted)
        try:
            numbers = [float(field) for field in (fields[0], *fields[order + 1 :])]
        except ValueError:
            raise self.damage_error(wanted) from None
        if any(math.isnan(x) or x == math.inf for x in numbers) or numbers[0] > 0:
            raise self.damage_error("the logarithm of a probability")
        return tuple(fields[1 : order + 1]), Entry(*(max(x, ZERO) for x in numbers))


def _before(first: tuple[int, str], rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from rest
