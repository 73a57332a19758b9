"""The content of answers: tokens and texts of each sequence."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from typing import Any, cast

from linattn_models.decoding import Output, Request
from linattn_models.decoding.texts import TextParts
from linattn_models.serving.states import StateStore


class Completion:
    """The answer to one request.

    Args:
        model: its name.
        tokenizer: makes texts; None for tokens alone.
        states: where the states of sequences are kept.
        request: its prompt is tokens.
    """

    def __init__(self, model: str, tokenizer: Any, states: StateStore, request: Request) -> None:
        self._head = {
            "id": f"cmpl-{secrets.token_hex(12)}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": model,
        }
        self._states = states
        self._texts: list[TextParts] = []
        if tokenizer is not None:
            before = cast(Sequence[int], request.prompt), request.state is not None
            self._texts = [TextParts(tokenizer, *before) for _ in range(request.sampling.n)]
        self._prompt_tokens = len(request.prompt)
        self.new_tokens = 0

    def part(self, outputs: list[Output]) -> dict[str, Any]:
        """The content of some outputs: one choice for each sequence that has any."""
        by_index: dict[int, list[Output]] = {}
        for output in outputs:
            by_index.setdefault(output.index, []).append(output)
        choices = [self._choice(index, own) for index, own in by_index.items()]
        return {**self._head, "choices": choices}

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        """The content of all outputs, and the numbers of tokens."""
        content = self.part(sorted(outputs, key=lambda output: output.index))
        usage = {"prompt_tokens": self._prompt_tokens, "completion_tokens": self.new_tokens}
        return {**content, "usage": {**usage, "total_tokens": sum(usage.values())}}

    def _choice(self, index: int, outputs: list[Output]) -> dict[str, Any]:
        tokens = [token for output in outputs for token in output.tokens]
        self.new_tokens += len(tokens)
        last = outputs[-1]
        choice: dict[str, Any] = {"index": index, "tokens": tokens}
        if self._texts:
            text = self._texts[index]
            ends = last.finish_reason is not None
            choice["text"] = "".join(map(text.add, tokens)) + (text.end() if ends else "")
        choice["finish_reason"] = last.finish_reason
        if last.state is not None:
            choice["state"] = self._states.put(last.state)
        return choice
