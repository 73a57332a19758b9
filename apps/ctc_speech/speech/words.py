"""From recognized labels to words: as they spell them, or the nearest ones of a lexicon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from linattn_core.errors import expected
from speech.lexicon import Lexicon

Integers = npt.NDArray[np.int64]

BOUNDARY = "\u2581"  # where a word begins, in labels that spell; no word has it
EDIT = 100  # the cost of a phone that is changed
WORD = 1  # that of a word: of equal parses the one with the fewest
_SHIFT = 24  # a number has the cost above these bits, and in them the phone at which a word began
_BEGIN = (1 << _SHIFT) - 1


@dataclass(frozen=True)
class FoundWord:
    """A word and its place.

    Attributes:
        word: as it is spelled; of a lexicon in capitals.
        first, last: the first and last of its labels, both included.
    """

    word: str
    first: int
    last: int


def find_spelled_words(labels: Sequence[str]) -> list[FoundWord]:
    """The words that labels spell, of which each `BOUNDARY` begins one."""
    found: list[FoundWord] = []
    begins = True
    for place, label in enumerate(labels):
        letters = label.removeprefix(BOUNDARY)
        begins = begins or letters != label
        if letters:
            before = FoundWord("", place, place) if begins else found.pop()
            found.append(FoundWord(before.word + letters, before.first, place))
            begins = False
    return found


@dataclass(frozen=True)
class Parse:
    """The words of the phones so far.

    Attributes:
        inside: for each place in each pronunciation, the cheapest path there, with its begin.
        costs: of the best parse of each number of phones.
        links: for each number of phones, the last word of its parse and where it began; word -1 is
            a phone that is in no word.
    """

    inside: Integers
    costs: tuple[int, ...]
    links: tuple[tuple[int, int], ...]


class WordFinder:
    """Finds the words whose pronunciations are the fewest edits away from recognized phones.

    An edit is a phone that is another, is missing, or is too much; a phone may also stand outside
    of all words, which is an edit, too. Of equal parses the one with the fewest words is taken, and
    of homophones the first of the lexicon.

    Args:
        lexicon: whose usual pronunciations count.
        inventory: the recognizer's phones, in the order of the classes 1, 2, ...

    Raises:
        ValueError: lexicon and recognizer have no phone in common.

    Cost: O(P) time for each phone, for P phones in the lexicon.
    """

    def __init__(self, lexicon: Lexicon, inventory: Sequence[str]) -> None:
        if not set(lexicon.inventory) & set(inventory):
            got = ", ".join(lexicon.inventory[:5])
            raise ValueError(expected("the lexicon", "phones of the run", got))
        classes = {phone: number for number, phone in enumerate(inventory, start=1)}
        self._words = list(lexicon.pronunciations)
        spelled = [lexicon.pronunciations[word] for word in self._words]
        lengths = np.array([len(phones) for phones in spelled])
        # All pronunciations in one row; a place is after one phone of a word.
        self._phones = np.array([classes.get(x, -1) for phones in spelled for x in phones])
        self._ends = lengths.cumsum() - 1
        self._begins = self._ends - lengths + 1
        place = np.arange(len(self._phones)) - np.repeat(self._begins, lengths)
        self._depth = (place + 1) * EDIT << _SHIFT  # cost of leaving out all phones up to a place
        # Less this, each word's numbers are below those of all words before it: paths differ by no
        # more than two words whose phones are all left out.
        self._apart = np.repeat(np.arange(len(lengths)), lengths) * (3 * self._depth.max())

    def start(self) -> Parse:
        """The parse of no phones."""
        return Parse(self._depth.copy(), (0,), ())

    def advance(self, parse: Parse, phone: int) -> Parse:
        """The parse with one more phone."""
        inside, edit = parse.inside, EDIT << _SHIFT
        count = len(parse.links)
        before = np.empty_like(inside)  # the paths one place earlier in the word
        before[1:] = inside[:-1]
        before[self._begins] = parse.costs[-1] << _SHIFT | count
        inside = np.minimum(before + edit * (self._phones != phone), inside + edit)
        inside = self._leave_out(inside)
        ends = inside[self._ends]
        word = int((ends >> _SHIFT).argmin())
        cost, link = int(ends[word] >> _SHIFT) + WORD, (word, int(ends[word] & _BEGIN))
        if parse.costs[-1] + EDIT <= cost:
            cost, link = parse.costs[-1] + EDIT, (-1, count)
        inside = np.minimum(inside, self._depth + (cost << _SHIFT | count + 1))
        return Parse(inside, (*parse.costs, cost), (*parse.links, link))

    def words(self, parse: Parse) -> list[FoundWord]:
        """The words of the best parse, in order."""
        found, end = [], len(parse.links)
        while end:
            word, begin = parse.links[end - 1]
            if word >= 0:
                found.append(FoundWord(self._words[word], begin, end - 1))
            end = begin
        return found[::-1]

    def _leave_out(self, inside: Integers) -> Integers:
        """The same, where phones of a word may be missing after the place of a path."""
        apart = inside - self._depth - self._apart
        lowest: Integers = np.minimum.accumulate(apart) + self._depth + self._apart
        return lowest
