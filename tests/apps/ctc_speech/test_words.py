"""Words are found in phones with the fewest edits, whatever the phones and the lexicon."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speech.lexicon import Lexicon, parse_lexicon
from speech.words import EDIT, WORD, FoundWord, WordFinder

INVENTORY = ("A", "B", "C")
SPELLED = st.lists(st.sampled_from([*INVENTORY, "X"]), min_size=1, max_size=4).map(tuple)


def edits(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """The Levenshtein distance."""
    if not one or not other:
        return len(one) + len(other)
    both = edits(one[1:], other[1:]) + (one[0] != other[0])
    return min(both, edits(one[1:], other) + 1, edits(one, other[1:]) + 1)


def least_cost(phones: tuple[str, ...], lexicon: Lexicon) -> int:
    """Of all ways to cut the phones into words and others."""

    @cache
    def cost(end: int) -> int:
        if not end:
            return 0
        spelled = lexicon.pronunciations.values()
        spans = ((begin, word) for begin in range(end) for word in spelled)
        words = (cost(b) + EDIT * edits(phones[b:end], word) + WORD for b, word in spans)
        return min(cost(end - 1) + EDIT, *words)

    return cost(len(phones))


@given(st.lists(SPELLED, min_size=1, max_size=4), st.lists(st.sampled_from(INVENTORY), max_size=6))
def test_no_other_words_are_nearer(spelled: list[tuple[str, ...]], said: list[str]) -> None:
    words = {f"W{number}": phones for number, phones in enumerate(spelled)}
    finder = WordFinder(lexicon := Lexicon(words, (*INVENTORY, "X")), INVENTORY)
    parse = finder.start()
    for phone in said:
        parse = finder.advance(parse, INVENTORY.index(phone) + 1)
    found = finder.words(parse)
    assert parse.costs[-1] == least_cost(tuple(said), lexicon)
    inside = [place for x in found for place in range(x.first, x.last + 1)]
    assert inside == sorted(set(inside))
    cost = EDIT * (len(said) - len(inside)) + WORD * len(found)
    cost += sum(EDIT * edits(tuple(said[x.first : x.last + 1]), words[x.word]) for x in found)
    assert cost == parse.costs[-1]


def test_words_with_a_wrong_phone_and_a_phone_between() -> None:
    lexicon = parse_lexicon(["zero Z IH R OW", "two T UW", "too T UW", "one W AH N"], "x")
    finder = WordFinder(lexicon, lexicon.inventory)
    parse = finder.start()
    for phone in ("Z", "AH", "R", "OW", "R", "T", "UW", "W", "N"):
        parse = finder.advance(parse, lexicon.inventory.index(phone) + 1)
    assert finder.words(parse) == [
        FoundWord("ZERO", 0, 3),
        FoundWord("TWO", 5, 6),
        FoundWord("ONE", 7, 8),
    ]
    with pytest.raises(ValueError, match="lexicon"):
        WordFinder(lexicon, ["LOW"])
