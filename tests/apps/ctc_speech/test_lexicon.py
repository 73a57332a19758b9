"""Pronunciations: the format of CMUdict, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from speech.lexicon import parse_lexicon, read_lexicon

LINES = [";;; a comment", "a AH0", "A(2) EY1", "yes Y EH1 S # note", ""]


def test_stress_is_folded_and_alternatives_are_kept() -> None:
    lexicon = parse_lexicon(LINES, "x")
    assert lexicon.phones(["YES", "a"]) == ("Y", "EH", "S", "AH")
    assert lexicon.alternatives("a") == (("AH",), ("EY",))
    assert lexicon.inventory == ("AH", "EH", "EY", "S", "Y")
    assert lexicon.words() == ["A", "YES"] and len(lexicon) == 2


def test_all_missing_words_are_in_one_error() -> None:
    with pytest.raises(ValueError, match=r"2 words, got none of 'maybe', 'no'"):
        parse_lexicon(LINES, "x").require(["no", "yes", "maybe", "no"])


def test_many_missing_words_are_counted() -> None:
    with pytest.raises(ValueError, match="and 30 more"):
        parse_lexicon(LINES, "x").require([f"w{n:02}" for n in range(50)])


@pytest.mark.parametrize(("lines", "sentence"), [(["word"], "line 1"), ([], "at least one word")])
def test_damaged_dictionaries_are_refused(lines: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        parse_lexicon(lines, "x")


def test_a_missing_dictionary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="lexicon in CMUdict format"):
        read_lexicon(tmp_path / "none.dict")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1"])
def test_words_have_accents_in_each_encoding(encoding: str, tmp_path: Path) -> None:
    """In UTF-8, the second bytes of Å and à are a line break and a blank of latin-1."""
    (tmp_path / "x.dict").write_bytes("Åse OW1 S AH0\r\nvoilà V W AA0 L AA1\r\n".encode(encoding))
    lexicon = read_lexicon(tmp_path / "x.dict")
    assert lexicon.phones(["åse", "VOILÀ"]) == ("OW", "S", "AH", "V", "W", "AA", "L", "AA")
    assert len(lexicon) == 2
