"""The words of errors: what was expected, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

LONGEST = 200
"""The most characters of a value that a message repeats: values from files have any length."""


def expected(what: str, wanted: object, got: object, advice: str = "") -> str:
    """The sentence "{what}: expected {wanted}, got {got}; {advice}."

    Args:
        what: the argument, field or file that is wrong; control characters are escaped.
        wanted: what would be right, with numbers or names.
        got: what came. A str is inserted without quotes, so pass `quote(value)` for a value that is
            text. Cut at 200 characters, with control characters escaped.
        advice: what to do; may end with a question mark, as `near` does.
    """
    sentence = f"{_escape(what)}: expected {_escape(str(wanted))}, got {_cut(str(got))}"
    if advice:
        sentence += f"; {_escape(advice)}"
    return sentence if sentence.endswith((".", "?")) else sentence + "."


def near(name: str, known: Iterable[str]) -> str:
    """The advice for an unknown name: "did you mean 'x'?", or "known are 'a', 'b'."."""
    names = list(known)
    matches = difflib.get_close_matches(name, names, n=2)
    if matches:
        return f"did you mean {' or '.join(map(repr, matches))}?"
    return f"known are {', '.join(map(repr, names))}."


def quote(value: object) -> str:
    """The repr of a value, cut at 200 characters, with control characters escaped."""
    return _cut(repr(value))


def _cut(text: str) -> str:
    escaped = _escape(text[: LONGEST + 1])
    return escaped if len(escaped) <= LONGEST else escaped[: LONGEST - 3] + "..."


def _escape(text: str) -> str:
    """The text with escapes in place of characters on which a terminal would act."""
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() else x.encode("unicode_escape").decode() for x in text)
