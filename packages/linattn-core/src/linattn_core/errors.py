"""The words of errors: what was expected, what came, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Self

LONGEST = 200
"""The most characters of a value that a message repeats: values from files have any length."""


class Sentence(str):
    """What `expected` returns: a sentence that knows what it is about.

    Attributes:
        what: the argument, field or file that is wrong.
        rest: the sentence after its name.
    """

    what: str
    rest: str

    def __new__(cls, rest: str, what: str = "") -> Self:
        """The sentence "{what}: {rest}"."""
        self = super().__new__(cls, f"{what}: {rest}" if what else rest)
        self.what, self.rest = what, rest
        return self

    def __reduce__(self) -> tuple[type[Sentence], tuple[str, str]]:
        return type(self), (self.rest, self.what)


def subject_of(error: BaseException) -> str | None:
    """The argument, field or file that an error is about; None where it does not say."""
    sentence = error.args[0] if error.args else None
    return sentence.what if isinstance(sentence, Sentence) else None


def rename_subject(error: ValueError | TypeError, what: str) -> ValueError | TypeError:
    """The same error about something that a caller knows by another name."""
    sentence = error.args[0] if error.args else None
    kind = TypeError if isinstance(error, TypeError) else ValueError
    return kind(Sentence(sentence.rest, what)) if isinstance(sentence, Sentence) else error


def expected(what: str, wanted: object, got: object, advice: str = "") -> str:
    """The `Sentence` "{what}: expected {wanted}, got {got}; {advice}."

    Args:
        what: the argument, field or file that is wrong; control characters are escaped.
        wanted: what would be right, with numbers or names.
        got: what came. A str is inserted without quotes, so pass `quote(value)` for a value that is
            text. Cut at 200 characters, with control characters escaped.
        advice: what to do; may end with a question mark, as `near` does.
    """
    sentence = f"expected {_escape(str(wanted))}, got {_cut(str(got))}"
    if advice:
        sentence += f"; {_escape(advice)}"
    return Sentence(sentence if sentence.endswith((".", "?")) else sentence + ".", _escape(what))


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
