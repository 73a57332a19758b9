"""The text of a sequence whose tokens come one after another."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from linattn_models.heads.tokenizer import CharacterTokenizer, decode_tokens
from linattn_models.state import NOTHING, RECENT, UNKNOWN, DecodingState

_CUT = "\ufffd"  # the end of a character whose other bytes are in the next token
# The most tokens that wait, and of a character that is not whole: it has at most 4 bytes.
_MOST_WAITING, _MOST_CUT = 8, 3
# The tokens of a context that are decoded: some character begins and ends in them.
_TAIL = RECENT - 1
# So many tokens of a vocabulary are tried until one has a text.
_TRIED = 1000


class TextParts:
    """The text that each new token adds to that of its prompt and of the tokens before it.

    A token is decoded together with those before it that made the last part, because they decide
    how it is written, such as whether a space comes first.

    Args:
        tokenizer: decodes.
        context: the last tokens before the first one, behind `UNKNOWN` where there are others.
        owes: whether the text so far leaves out its last character if that is not whole, as the
            text of an answer does whose state is returned.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = (), owes: bool = False) -> None:
        self._tokenizer = tokenizer
        self._last: list[int] = []  # the tokens of the last part: they begin with a character
        self._length = 0  # of their text
        self._new: list[int] = []
        self._waiting = self._known = ""
        for token in _read_context(tokenizer, context):
            self.add(token)
        # The text so far has it, but for half of a character.
        self._known = self._waiting.rstrip(_CUT) if owes else self._waiting

    @property
    def waiting(self) -> str:
        """The whole characters of the tokens that end inside of one, and so are no part yet."""
        return self._waiting[_count_same(self._waiting, self._known) :].rstrip(_CUT)

    def add(self, token: int) -> str:
        """The text that the token completes; "" while it ends inside of a character."""
        self._new.append(token)
        text = decode_tokens(self._tokenizer, self._last + self._new)
        self._waiting = text[self._length :]
        if not text.endswith(_CUT):
            return self.end()
        return self._give_out_whole(text) if len(self._new) >= _MOST_WAITING else ""

    def _give_out_whole(self, text: str) -> str:
        """The text of the tokens that wait, but for a last character that may not be whole.

        So many tokens wait only if the text itself has replacement characters. The last character
        has at most three bytes so far, and so at most three tokens.
        """
        tokens, first = self._last + self._new, self._length
        cuts = range(1, _MOST_CUT + 1)
        beginnings = {cut: decode_tokens(self._tokenizer, tokens[:-cut]) for cut in cuts}
        # A beginning that itself ends inside of a character has more replacements, or as many.
        fitting = [
            (len(x), cut) for cut, x in beginnings.items() if text[first:].startswith(x[first:])
        ]
        if not fitting:
            return self.end()
        end, cut = min(fitting)
        part, self._waiting = text[first:end], text[end:]
        self._last, self._new = self._new[:-cut], self._new[-cut:]
        self._length = len(decode_tokens(self._tokenizer, self._last))
        return self._leave_out_known(part)

    def end(self, owes: bool = False) -> str:
        """The text that waits, which no token will complete; see the class for `owes`."""
        part, self._waiting = self._waiting.rstrip(_CUT) if owes else self._waiting, ""
        if self._new:
            self._last, self._new = self._new, []
            self._length = len(decode_tokens(self._tokenizer, self._last))
        return self._leave_out_known(part)

    def _leave_out_known(self, part: str) -> str:
        """What the prompt's text does not have of a part."""
        same = _count_same(part, self._known)
        self._known = self._known[same:] if same == len(part) else ""
        return part[same:]


def _count_same(one: str, other: str) -> int:
    """The characters with which both texts begin."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def contexts_of(state: DecodingState | None) -> list[list[int]]:
    """The context that the state of each row gives `TextParts`; None for the start of one."""
    if state is None:
        return [[]]
    if state.recent is None:
        return [[UNKNOWN]] * state.batch
    return [[token for token in row if token != NOTHING] for row in state.recent.tolist()]


def _read_context(tokenizer: Any, context: Sequence[int]) -> Sequence[int]:
    """A few tokens after which others are written as after these."""
    if isinstance(tokenizer, CharacterTokenizer):
        return ()
    known = [token for token in context if token != UNKNOWN]
    begins = len(known) == len(context) <= _TAIL
    first, tail = [] if begins else _first_with_a_text(tokenizer), known[-_TAIL:]
    starts = range(max(len(tail) - _MOST_CUT - 1, 0) if first else 0)
    start = next((x for x in starts if _is_character(tokenizer, tail[x:])), 0)
    return [*first, *tail[start:]]


def _is_character(tokenizer: Any, tokens: Sequence[int]) -> bool:
    """Whether tokens begin with a whole character; parts of one are replaced byte by byte."""
    counts = range(1, _MOST_CUT + 2)
    return any(decode_tokens(tokenizer, [*tokens[:x]]).count(_CUT) < x for x in counts)


def _first_with_a_text(tokenizer: Any) -> list[int]:
    """A token that stands for those before, which are not decoded: a text does not begin here."""
    for token in range(_TRIED):
        text = decode_tokens(tokenizer, [token])
        if text and _CUT not in text:
            return [token]
    return []
