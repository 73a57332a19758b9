"""Which sequences continue, and the states of those that have ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.decoding.prompts import Prompt
from linattn_models.heads import Head
from linattn_models.state import DecodingState
from linattn_models.validation import as_ints

# Rows that have ended are dropped from the batch when they are this share of it: dropping copies
# the states, so it is not done for each row.
_WORTH_DROPPING = 0.25


class Stopping:
    """Tracks which rows of a batch continue: they are not complete and drew no stop token.

    The predictor holds the rows that continue, and for some steps a few that have ended.

    Args:
        tokens: (S,) int64, the stop tokens.
        prompt: the prompts of all B rows.

    Attributes:
        held: (R,) int64, the rows of the batch that the predictor holds.
        ended: int64 indices into `held` of the rows that ended at the last step.
    """

    def __init__(self, tokens: Tensor, prompt: Prompt) -> None:
        self._tokens = tokens
        self._stop = frozenset(tokens.tolist())
        self._steps = prompt.steps_of_rows
        self._batch = batch = prompt.batch
        self.held = torch.arange(batch, device=tokens.device)
        self._going = torch.ones(batch, dtype=torch.bool, device=tokens.device)  # of `held`
        self._all_go_on = True
        self._next_complete = int(self._steps.min())  # steps after which a row is complete
        self.ended = self.held[:0]

    def spread(self, drawn: Tensor) -> Tensor:
        """The tokens of the held rows as (B,) or (B, 3), -1 in rows that had ended before."""
        if self._all_go_on:
            return drawn
        spread = drawn.new_full((self._batch, *drawn.shape[1:]), -1)
        ended = ~self._going.view(-1, *[1] * (drawn.ndim - 1))
        spread[self.held] = drawn.masked_fill(ended, -1)
        return spread

    def end(self, drawn: Tensor, step: int) -> bool:
        """Marks rows that drew a stop token or are complete; returns whether any row continues."""
        # At most steps no row ends; a set of tokens in Python is faster than tensors here.
        stopped = bool(self._stop) and not self._stop.isdisjoint(drawn.tolist())
        if not stopped and step + 1 < self._next_complete:
            self.ended = self.ended[:0]
            return True
        steps = self._steps[self.held]
        going = self._going & (steps > step + 1)
        if stopped:
            going &= ~torch.isin(drawn, self._tokens)
        self.ended = (self._going & ~going).nonzero().squeeze(1)
        self._going = going
        left = steps[going]
        if not len(left):
            return False
        self._next_complete = int(left.min())
        self._all_go_on = len(left) == self._batch
        return True

    def drop(self) -> Tensor | None:
        """Drops ended rows where it is worth it: the indices into `held` to keep, else None."""
        if not len(self.ended):
            return None
        going = self._going.nonzero().squeeze(1)
        if len(going) > (1 - _WORTH_DROPPING) * len(self._going):
            return None
        self.held, self._going = self.held[going], self._going[going]
        return going


class Ends:
    """Collects the state of each sequence when it ends, for `return_state`.

    A state is collected before its last token is read; one step at the end reads all last tokens.

    Args:
        prompt: the prompts of all B rows.
    """

    def __init__(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._rows: list[Tensor] = []
        self._tokens: list[Tensor] = []
        self._states: list[DecodingState] = []

    def add(self, stopping: Stopping, drawn: Tensor, state: DecodingState) -> None:
        """Collects the rows that ended at this step."""
        ended = stopping.ended
        if len(ended):
            rows = stopping.held[ended]
            self._rows.append(rows)
            self._tokens.append(self._last(rows, drawn[ended]))
            self._states.append(state.index_select(ended))

    def state(self, read: Callable[[Tensor, DecodingState], DecodingState]) -> DecodingState:
        """The state of all B rows, in order, after their last tokens, which `read` reads."""
        order = torch.cat(self._rows).argsort()
        after = read(torch.cat(self._tokens), DecodingState.cat(self._states))
        return after.index_select(order)

    def _last(self, rows: Tensor, drawn: Tensor) -> Tensor:
        """The last token of each row: the drawn one, or the prefix's if that was complete."""
        prompt = self._prompt
        complete = prompt.steps_of_rows[rows] == 0
        if not bool(complete.any()):
            return drawn
        own = prompt.tokens[rows, prompt.length - 1]
        return torch.where(complete.view(-1, *[1] * (own.ndim - 1)), own, drawn)


def checked_stop_tokens(
    stop: int | Sequence[int] | None, head: Head, device: torch.device
) -> Tensor | None:
    """The tokens as (S,) int64, or None without any.

    Raises:
        ValueError: a token that the head cannot draw, or a head whose tokens have several values.
        TypeError: not an int or a sequence of them.
    """
    if stop is None:
        return None
    tokens = as_ints("stop_tokens", stop)
    if head.channels > 1:
        got = f"{head.channels} values a token"
        raise ValueError(expected("stop_tokens", "a model with one value a token", got))
    for token in tokens:
        if not 0 <= token < head.levels:
            raise ValueError(expected("stop_tokens", f"tokens in 0..{head.levels - 1}", token))
    return torch.tensor(tokens, dtype=torch.int64, device=device) if tokens else None
