"""Stop tokens: which sequences go on."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from linattn_core.errors import expected, shown
from linattn_models.decoding.prompts import Prompt
from linattn_models.heads import Head

# Rows that have ended are dropped from a batch once they are this share of it, since dropping
# copies the states.
_WORTH_DROPPING = 0.25


class Stopping:
    """The rows of a batch that go on: they are not complete and have drawn no stop token.

    A predictor holds the rows that go on, and for some steps a few that have ended.

    Args:
        tokens: (S,) int64, each ends a row.
        prompt: of all B rows.
    """

    def __init__(self, tokens: Tensor, prompt: Prompt) -> None:
        self._tokens = tokens
        self._batch = batch = prompt.batch
        self._steps = prompt.steps_of_rows
        self._held = torch.arange(batch, device=tokens.device)  # by the predictor, of the batch
        self._going = torch.ones(batch, dtype=torch.bool, device=tokens.device)  # of those held

    def spread(self, drawn: Tensor) -> Tensor:
        """The tokens of the held rows as (B,), -1 in rows that had ended before."""
        spread = drawn.new_full((self._batch,), -1)
        spread[self._held] = drawn.masked_fill(~self._going, -1)
        return spread

    def end(self, drawn: Tensor, step: int) -> bool:
        """Marks rows that drew a stop token at this step or are complete; whether any goes on."""
        self._going &= ~torch.isin(drawn, self._tokens)
        self._going &= self._steps[self._held] > step + 1
        return bool(self._going.any())

    def drop(self) -> Tensor | None:
        """The held rows to keep, where dropping the others is worth it; they are held from now."""
        kept = self._going.nonzero().squeeze(1)
        if len(kept) > (1 - _WORTH_DROPPING) * len(self._going):
            return None
        self._held, self._going = self._held[kept], self._going[kept]
        return kept


def checked_stop_tokens(
    stop: int | Sequence[int] | None, head: Head, device: torch.device
) -> Tensor | None:
    """The tokens as (S,) int64, or None without any.

    Raises:
        ValueError: a token that the head never draws, or a head whose tokens have several values.
        TypeError: no int.
    """
    if stop is None:
        return None
    tokens = [stop] if isinstance(stop, int) else list(stop)
    if head.channels > 1:
        got = f"{head.channels} values a token"
        raise ValueError(expected("stop_tokens", "a model with one value a token", got))
    for token in tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise TypeError(expected("stop_tokens", "an int or several", shown(token)))
        if not 0 <= token < head.levels:
            raise ValueError(expected("stop_tokens", f"tokens in 0..{head.levels - 1}", token))
    return torch.tensor(tokens, dtype=torch.int64, device=device) if tokens else None
