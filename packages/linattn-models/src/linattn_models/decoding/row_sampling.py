"""Draws in which every row has settings and a stream of random numbers of its own."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import RowDraw
from linattn_models.decoding.philox import RowStreams
from linattn_models.heads.base import LEAST_TEMPERATURE, Drawn, Head, at_least_single
from linattn_models.heads.filters import Filters
from linattn_models.packing import past_lengths

# In float64, differences of logits divided by it are 0 or infinite, so it takes the likeliest.
_GREEDY = 1e-300


class RowSampling:
    """Draws the tokens of rows one position after the other.

    Args:
        temperature: (B,) float64.
        filters: of B rows.
        streams: of B rows.
        repetitions: the tokens of each row so far; None where they change nothing.
    """

    def __init__(
        self,
        temperature: Tensor,
        filters: Filters,
        streams: RowStreams,
        repetitions: Repetitions | None,
    ) -> None:
        self._is_greedy = temperature < LEAST_TEMPERATURE
        self._temperature = temperature.masked_fill(self._is_greedy, _GREEDY)
        self._filters = filters
        self._streams = streams
        self._repetitions = repetitions

    def draw(self, head: Head, parameters: Tensor) -> Tensor:
        """Tokens (B,) or (B, 3) from parameters (B, P), at the next position of each row."""
        parameters = at_least_single(parameters)
        if self._repetitions is not None:
            parameters = self._repetitions.penalize(parameters)
        if self._filters:
            temperature = self._temperature.masked_fill(self._is_greedy, 1.0).unsqueeze(1)
            parameters = self._filters(parameters, temperature.to(parameters.dtype))
        uniform = self._streams.next().masked_fill(self._is_greedy.unsqueeze(1), 0.0)
        tokens = cast(Drawn, head).invert(parameters, uniform, self._temperature)
        if self._repetitions is not None:
            self._repetitions.add(tokens)
        return tokens

    @property
    def reads_tokens(self) -> bool:
        """Whether a draw depends on the tokens before, and not on the parameters alone."""
        return self._repetitions is not None

    def numbers(self, count: int) -> RowDraw:
        """The settings, and the random numbers of the next `count` positions (count, B, 4)."""
        uniform = self._streams.take(count).masked_fill_(self._is_greedy.unsqueeze(1), 0.0)
        return RowDraw(self._temperature, uniform, *self._filters.limits(self._temperature))

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._is_greedy, self._temperature = self._is_greedy[rows], self._temperature[rows]
        self._filters = self._filters.select_rows(rows)
        self._streams.select_rows(rows)
        if self._repetitions is not None:
            self._repetitions.select_rows(rows)


class Repetitions:
    """The tokens of each row so far, which a penalty makes less likely.

    Args:
        penalty: (B,): logits above 0 of such tokens are divided by it, the others multiplied.
        tokens: (B, N) int64.
        lengths: (B,) int64, tokens of each row.
        levels: V, the size of the vocabulary.
    """

    def __init__(self, penalty: Tensor, tokens: Tensor, lengths: Tensor, levels: int) -> None:
        beyond = past_lengths(lengths, tokens.shape[1])
        seen = torch.zeros(len(tokens), levels + 1, dtype=torch.bool, device=tokens.device)
        self._seen = seen.scatter_(1, tokens.masked_fill(beyond, levels), True)[:, :levels]
        self._penalty = penalty.unsqueeze(1)

    def penalize(self, logits: Tensor) -> Tensor:
        """The logits (B, V) after the penalty."""
        penalty = self._penalty.to(logits.dtype)
        penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
        return torch.where(self._seen, penalized, logits)

    def add(self, tokens: Tensor) -> None:
        """Adds a token (B,) of each row."""
        self._seen.scatter_(1, tokens.unsqueeze(1), True)

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._seen, self._penalty = self._seen[rows], self._penalty[rows]
