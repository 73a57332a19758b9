"""The text of a sequence whose tokens come one after another."""

from __future__ import annotations

from typing import Any

from linattn_models.tokenizer import decode_tokens

_CUT = "\ufffd"  # the end of a character whose other bytes are in the next token
# The most tokens that wait, and of a character that is not whole: it has at most 4 bytes.
_MOST_WAITING, _MOST_CUT = 8, 3


class TextParts:
    """The text that each new token adds.

    A token is decoded together with those before it that made the last part, because they decide
    how it is written, such as whether a space comes first.

    Attributes:
        waiting: the text of the tokens that end inside of a character, and so are no part yet.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._last: list[int] = []  # the tokens of the last part: they begin with a character
        self._length = 0  # of their text
        self._new: list[int] = []
        self.waiting = ""

    def add(self, token: int) -> str:
        """The text that the token completes; "" while it ends inside of a character."""
        self._new.append(token)
        text = decode_tokens(self._tokenizer, self._last + self._new)
        self.waiting = text[self._length :]
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
        part, self.waiting = text[first:end], text[end:]
        self._last, self._new = self._new[:-cut], self._new[-cut:]
        self._length = len(decode_tokens(self._tokenizer, self._last))
        return part

    def end(self) -> str:
        """The text that waits, which no token will complete."""
        part, self.waiting = self.waiting, ""
        if self._new:
            self._last, self._new = self._new, []
            self._length = len(decode_tokens(self._tokenizer, self._last))
        return part
