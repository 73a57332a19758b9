"""The rows of a batch: which sequence is where, its state and its last token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from linattn_models.decoding.batch.requests import FinishReason, Task
from linattn_models.decoding.sampling import Draws, SamplingParams, start_draws
from linattn_models.decoding.stopping import TextEnd
from linattn_models.heads import Head
from linattn_models.heads.base import token_shape
from linattn_models.state import Cursor, DecodingBatch, DecodingState

# Native products of a multiple of 4 rows sum in one order, whatever the rows; blocks of them have
# at most 128 rows.
_MULTIPLE = 4
_BLOCK = 128


class Row:
    """One sequence.

    Args:
        request: the id of its request.
        index: its number among the samples of the request.
        task: the request.

    Attributes:
        left: tokens that it may still draw.
    """

    def __init__(self, request: int, index: int, task: Task) -> None:
        self.request = request
        self.index = index
        self.task = task
        self.left = task.new_tokens
        stop = task.stop
        self._stop_tokens = frozenset(stop.tokens if stop else ())
        self._text = TextEnd(stop) if stop and stop.strings else None

    def take(self, tokens: list[Any]) -> tuple[list[Any], FinishReason | None]:
        """The new tokens up to the sequence's end, and why it ends; None if it goes on."""
        tokens = tokens[: self.left]
        if self.task.stop is not None:
            for count, token in enumerate(tokens, 1):
                if self._stops_at(token):
                    return tokens[:count], "stop"
        self.left -= len(tokens)
        return tokens, None if self.left else "length"

    def _stops_at(self, token: int) -> bool:
        return token in self._stop_tokens or (self._text is not None and self._text.add(token))


class Rows:
    """Rows that sequences take and leave, in memory that is allocated once.

    Args:
        start: the state of one sequence before its first token.
        most: the most sequences.
        head, device: of the model.

    Attributes:
        draws: how the rows draw.
        tokens: (capacity,) or (capacity, 3), the last token of each row.
    """

    def __init__(self, start: DecodingState, most: int, head: Head, device: torch.device) -> None:
        capacity = _pad(most)
        # On a GPU, the number of rows is fixed, because a graph is recorded for each number.
        self._is_fixed = device.type != "cpu"
        first = capacity if self._is_fixed else _MULTIPLE
        self._start = start
        self._batch = DecodingBatch(start.index_select([0] * first), capacity)
        self.draws = start_draws(SamplingParams(temperature=0.0, seed=0), first, head, device)
        self._rows: list[Row | None] = [None] * first
        self._positions = torch.zeros(capacity, dtype=torch.int64)  # of the next inputs
        self._moves = torch.zeros(capacity, dtype=torch.int64)  # 1 for places with a sequence
        self.tokens = torch.zeros((capacity, *token_shape(head)), dtype=torch.int64, device=device)

    def __len__(self) -> int:
        """The rows that are stepped, also those without a sequence."""
        return len(self._rows)

    @property
    def count(self) -> int:
        """The sequences."""
        return sum(row is not None for row in self._rows)

    def active(self) -> Iterator[tuple[int, Row]]:
        """The places with a sequence."""
        return ((place, row) for place, row in enumerate(self._rows) if row is not None)

    def join(self, rows: Sequence[Row], state: DecodingState, draws: Draws) -> Tensor:
        """Gives all sequences of a request, which continue one state, places; returns these."""
        places = self._free_places(len(rows))
        where = torch.tensor(places, device=self.tokens.device)
        self._batch.overwrite(where, state)
        self.draws.put(where, draws)
        self._positions[places] = state.cursor.furthest
        self._moves[places] = 1
        for place, row in zip(places, rows, strict=True):
            self._rows[place] = row
        return where

    def leave(self, place: int) -> None:
        """Frees a place."""
        self._rows[place] = None
        self._positions[place] = self._moves[place] = 0

    def compact(self) -> None:
        """Drops places without a sequence, as far as the number of rows stays padded."""
        drops = 0 if self._is_fixed else len(self._rows) - _pad(self.count)
        if drops <= 0:
            return
        free = [place for place, row in enumerate(self._rows) if row is None]
        order = self._batch.leave(free[-drops:])
        self.draws.select_rows(order)
        left = len(order)
        self._rows = [self._rows[place] for place in order.tolist()]
        for x in (self._positions, self._moves, self.tokens):
            x[:left] = x[order.to(x.device)]
            x[left:] = 0  # a place that is added again does not advance without a sequence

    @property
    def state(self) -> DecodingState:
        """The state of all rows, for the next step."""
        cursor = Cursor.at(self._positions[: len(self)].to(self.tokens.device))
        # The batch's parameters are of other rows, and steps do not read them.
        return replace(self._batch.state, cursor=cursor, parameters=None)

    def state_of(self, place: int) -> DecodingState:
        """The state of one row, as a copy."""
        state = self._batch.state.index_select([place])
        cursor = Cursor.at(self._positions[place : place + 1])
        return replace(state, cursor=cursor, parameters=None)

    def advance(self, state: DecodingState, tokens: Tensor) -> None:
        """Takes what steps returned: the next state, and the tokens (steps, R) or (steps, R, 3)."""
        self._batch.state = replace(state, parameters=None)
        self._positions += len(tokens) * self._moves
        self.tokens[: len(self)] = tokens[-1]

    def _free_places(self, count: int) -> list[int]:
        """Places without a sequence, the first ones; adds some where there are too few."""
        more = _pad(self.count + count) - len(self._rows)
        if more > 0:
            self._batch.join(self._start.index_select([0] * more))
            order = [*range(len(self._rows)), *[0] * more]
            self.draws.select_rows(torch.tensor(order, device=self.tokens.device))
            self._rows += [None] * more
        return [place for place, row in enumerate(self._rows) if row is None][:count]


def _pad(rows: int) -> int:
    """The number of rows of which `rows` are needed: at least 4, and blocks of whole multiples."""
    multiple = _MULTIPLE * max(1, -(-rows // _BLOCK))
    return max(multiple, -(-rows // multiple) * multiple)
