"""A batch whose rows come and go, in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.state.cache import LayerState
from linattn_models.state.cursor import Cursor
from linattn_models.state.decoding_state import DecodingState, check_alike, common_fingerprint
from linattn_models.validation import as_ints, at_least


class DecodingBatch:
    """The states of sequences that join and leave a batch between steps.

    Steps take `state`, and return the next one, which is set again:

        parameters, batch.state = decoder.step(tokens, batch.state)

    `DecodingState.cat` and `index_select` copy the states of all rows that they return. Here, a
    state is copied only when its row joins, or when it moves to the place of a row that left.

    Args:
        state: of the first rows, which are copied; it sets the sizes and `max_length`.
        capacity: rows for which memory is allocated; doubled where more join, which copies all.

    Raises:
        ValueError: a capacity below 1.
    """

    def __init__(self, state: DecodingState, capacity: int) -> None:
        self._capacity = 0
        self._layers: tuple[LayerState, ...] = ()
        self._state = state
        self._reserve(max(at_least("capacity", capacity, 1), state.batch))

    @property
    def capacity(self) -> int:
        """The rows for which there is memory."""
        return self._capacity

    @property
    def state(self) -> DecodingState:
        """The state of all rows, for the next step; set it to what the step returned.

        Its tensors are views of the batch's memory, which later steps, `join` and `leave` change.
        """
        return self._state

    @state.setter
    def state(self, state: DecodingState) -> None:
        if state.batch != self._state.batch or _addresses(state) != _addresses(self._state):
            wanted, got = "what a step of its rows returned in place", "another one"
            advice = "step under torch.no_grad, and add the states of other sequences by join"
            raise ValueError(expected("state", wanted, got, advice))
        self._state = state

    def join(self, state: DecodingState) -> None:
        """Adds the rows of a state at the end.

        Raises:
            ValueError: a state of another model, dtype or device.
            TypeError: not a state.

        Cost: a copy of the rows of `state`.
        """
        fingerprint = common_fingerprint(check_alike([self._state, state]))
        state = state.with_room(self._state.max_length)
        first, last = self._state.batch, self._state.batch + state.batch
        if last > self._capacity:
            self._reserve(max(last, 2 * self._capacity))
        self._write(state.layers, first)
        rows = [x.cursor.rows(x.batch, x.device) for x in (self._state, state)]
        parameters = None
        if self._state.parameters is not None and state.parameters is not None:
            parameters = torch.cat([self._state.parameters, state.parameters])
        self._show(last, Cursor.at(torch.cat(rows)), parameters)
        self._state = replace(self._state, fingerprint=fingerprint)

    def overwrite(self, rows: Tensor, state: DecodingState) -> None:
        """Puts a state in the places of rows that are not needed; see `join` for the errors.

        Args:
            rows: (R,) int64, places in the batch, each once.
            state: of R rows, or of one for all places. Its parameters are not copied.
        """
        fingerprint = common_fingerprint(check_alike([self._state, state]))
        state = state.with_room(self._state.max_length)
        with torch.no_grad():
            for own, layer in zip(self._state.layers, state.layers, strict=True):
                for x, new in zip(own, layer, strict=True):
                    x[rows] = new
        positions = self._state.cursor.rows(self._state.batch, self._state.device).clone()
        positions[rows] = state.cursor.rows(state.batch, state.device)
        self._state = replace(self._state, cursor=Cursor.at(positions), fingerprint=fingerprint)

    def leave(self, rows: Tensor | Sequence[int]) -> Tensor:
        """Removes rows; the last ones move to their places.

        Args:
            rows: places in the batch, each once.

        Returns:
            (rows left,) int64: for each place, the place where its row was before.

        Raises:
            ValueError: a row that is not there, or twice.

        Cost: a copy of at most as many states as rows leave, and of the parameters.
        """
        leaving = as_ints("rows", rows)
        batch = self._state.batch
        if len(set(leaving)) < len(leaving) or not set(leaving) <= set(range(batch)):
            raise ValueError(expected("rows", f"some of 0..{batch - 1}, each once", leaving))
        left = batch - len(leaving)
        free = sorted(row for row in leaving if row < left)
        moved = sorted(set(range(left, batch)) - set(leaving))
        order = torch.arange(left)
        order[free] = torch.tensor(moved, dtype=torch.int64)
        order = order.to(self._state.device)
        for place, row in zip(free, moved, strict=True):
            self._write(tuple(_rows_of(layer, row, row + 1) for layer in self._layers), place)
        parameters = self._state.parameters
        parameters = None if parameters is None else parameters.index_select(0, order)
        self._show(left, self._state.cursor.index_select(order), parameters)
        return order

    def _reserve(self, capacity: int) -> None:
        """Allocates memory for so many rows, and copies the states there are."""
        before = self._state
        # Normal tensors, not inference tensors, so that steps may write them in either mode.
        with torch.inference_mode(False):
            self._layers = tuple(
                type(layer)(*(x.new_zeros(capacity, *x.shape[1:]) for x in layer))
                for layer in before.layers
            )
        self._capacity = capacity
        self._write(before.layers, 0)
        self._show(before.batch, before.cursor.clone(), before.parameters)

    @torch.no_grad()
    def _write(self, layers: Sequence[LayerState], first: int) -> None:
        """Copies states to the places from `first` on."""
        count = layers[0][0].shape[0]
        for own, layer in zip(self._layers, layers, strict=True):
            for x, new in zip(own, layer, strict=True):
                x[first : first + count].copy_(new)

    def _show(self, batch: int, cursor: Cursor, parameters: Tensor | None) -> None:
        """Sets the state to the first `batch` rows."""
        layers = tuple(_rows_of(layer, 0, batch) for layer in self._layers)
        self._state = replace(self._state, layers=layers, cursor=cursor, parameters=parameters)


def _addresses(state: DecodingState) -> list[int]:
    return [x.data_ptr() for layer in state.layers for x in layer]


def _rows_of(layer: LayerState, first: int, last: int) -> LayerState:
    """Views of the rows from `first` up to `last`."""
    return type(layer)(*(x[first:last] for x in layer))
