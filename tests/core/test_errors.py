"""The words of errors."""

import pytest

from linattn_core.errors import expected, near, quote


def test_near_names_are_offered_and_otherwise_all():
    assert near("reference_", ("cpu", "reference")) == "did you mean 'reference'?"
    assert near("x", ("cpu", "reference")) == "known are 'cpu', 'reference'."


@pytest.mark.parametrize("text", ["x" * 300_000, "\x1b[31m" * 1000, "\N{BELL}" * 300])
def test_long_values_are_cut(text):
    for sentence in (expected("it", "less", text), quote(text)):
        assert len(sentence) < 240 and "..." in sentence


def test_control_characters_are_escaped():
    hostile = "\x1b]0;title\x07\n\N{RIGHT-TO-LEFT OVERRIDE}\ud800"
    for sentence in (expected("it", "text", hostile), quote(hostile)):
        assert sentence.isprintable() and r"\x1b" in sentence


def test_ordinary_text_stays_as_it_is():
    assert quote("größer") == "'größer'"
    assert expected("it", "a path", "a\\b c") == "it: expected a path, got a\\b c."
