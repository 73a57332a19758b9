"""Log-probabilities of tokens, as OpenAI's clients read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from linattn_models.decoding import TokenLogprobs
from linattn_models.decoding.texts import TextParts
from linattn_models.state import UNKNOWN

# JSON has no infinity; OpenAI sends this for what is very unlikely.
_LEAST = -9999.0
# Before the number of a token that has no text alone, such as one of a character's bytes.
_NUMBER = "token_id:"


class Words:
    """The texts of single tokens.

    Args:
        tokenizer: decodes; None for numbers alone.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def describe(
        self,
        tokens: Sequence[int],
        logprobs: Sequence[TokenLogprobs | None],
        offsets: Sequence[int],
    ) -> dict[str, Any]:
        """The `logprobs` of a completion, null where they are None.

        `offsets` are the tokens' places in its text.
        """
        return {
            "tokens": [self._text(token) for token in tokens],
            "token_logprobs": [None if x is None else max(x.own, _LEAST) for x in logprobs],
            "top_logprobs": [
                None if x is None else self._likeliest(token, x)
                for token, x in zip(tokens, logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def _likeliest(self, token: int, logprobs: TokenLogprobs) -> dict[str, float]:
        """The likeliest tokens and the token itself, by their texts."""
        pairs = (*logprobs.likeliest, (token, logprobs.own))
        return {self._text(x): max(y, _LEAST) for x, y in pairs}

    def _text(self, token: int) -> str:
        if token not in self._texts:
            text = ""
            if self._tokenizer is not None:
                parts = TextParts(self._tokenizer, [UNKNOWN])
                text = parts.add(token) + parts.end()
            has_text = text and "\ufffd" not in text
            self._texts[token] = text if has_text else f"{_NUMBER}{token}"
        return self._texts[token]


def convert_to_chat(logprobs: dict[str, Any], most: int) -> dict[str, Any]:
    """The `logprobs` of a chat's choice, with at most so many of the likeliest tokens."""
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    content = [
        {**_entry(text, own), "top_logprobs": [_entry(*pair) for pair in [*top.items()][:most]]}
        for text, own, top in rows
    ]
    return {"content": content, "refusal": None}


def _entry(text: str, logprob: float) -> dict[str, Any]:
    content = None if text.startswith(_NUMBER) else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": content}
