"""The words of errors."""

import pickle

import pytest

from linattn_core.errors import expected, near, quote, rename_subject, subject_of


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


def test_an_error_knows_what_it_is_about():
    error = ValueError(expected("prefix", "tokens", "none", "pass some"))
    copy = pickle.loads(pickle.dumps(error))
    assert subject_of(error) == subject_of(copy) == "prefix" and str(copy) == str(error)
    renamed = rename_subject(error, "prompt")
    assert str(renamed) == "prompt: expected tokens, got none; pass some."
    assert subject_of(renamed) == "prompt"
    assert subject_of(ValueError("prefix: any words")) is None
