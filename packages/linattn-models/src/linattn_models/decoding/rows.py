"""The rows of a batch: what makes their steps, their states and last tokens, and their draws."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import Draws, SamplingParams, start_draws
from linattn_models.heads import Head
from linattn_models.heads.base import token_shape
from linattn_models.state import (
    NOTHING,
    START,
    Cursor,
    DecodingState,
    LayerState,
    remember,
)

# How a row without a sequence draws.
_NOBODY = SamplingParams(temperature=0.0, seed=0)


class Stepper(ABC):
    """Makes the steps of rows: a model, a decoder that was compiled from one, or `Rerun`."""

    head: Head

    @abstractmethod
    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """(B, N) -> the parameters (B, P) for the token after each prompt, and the state."""

    @abstractmethod
    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """(B,) -> the parameters (B, P) for the next token, and the next state."""

    def steps_and_draws(
        self, token: Tensor, state: DecodingState, draws: Draws, count: int
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """`count` steps, each with the tokens that the one before drew.

        Args:
            token, state, draws: of the first step, checked already; the draws are made inside.
            count: at least 1, and at most what `count_steps` allows.

        Returns:
            The parameters (count, B, P), the tokens (count, B) or (count, B, 3), and the state
            after the last step.
        """
        parameters, state = self.step(token, state)
        drawn = draws.draw(self.head, parameters)
        return parameters.unsqueeze(0), drawn.unsqueeze(0), state

    def count_steps(self, state: DecodingState, draws: Draws, most: int) -> int:
        """How many of `most` steps one call should make: 1 or more, as far as there is room."""
        return 1

    def hold(self, state: DecodingState, owner: object) -> DecodingState:
        """The state in the memory where it is stepped fastest, which `owner` has while it lives."""
        return state


class Rows:
    """Rows that draw one token after the other.

    Rows that are complete stay at their last position, and their draws are ignored.

    Args:
        source: makes the steps.
        state: of all rows, before their last tokens.
        tokens: (R,) or (R, 3), the last token of each row.
        draws: of the rows.
    """

    def __init__(self, source: Stepper, state: DecodingState, tokens: Tensor, draws: Draws) -> None:
        self.source = source
        self.state = state
        self.tokens = tokens
        self.draws = draws

    def hold(self) -> None:
        """Moves the state to the memory where it is stepped fastest."""
        self.state = self.source.hold(self.state, self)

    def advance(self, most: int) -> tuple[Tensor, Tensor]:
        """The parameters (count, R, P) and tokens (count, R) or (count, R, 3) of 1 to `most` steps.

        With `most` above 1, each step draws before anything else can read the token before.
        """
        state = keep_within_room(self.state)
        count = 1 if most == 1 else self.source.count_steps(state, self.draws, most)
        parameters, tokens, self.state = self.source.steps_and_draws(
            self.tokens, state, self.draws, count
        )
        self.tokens = tokens[-1]
        return parameters, tokens

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows only."""
        self.state = self.state.index_select(rows)
        self.hold()
        self.tokens = self.tokens[rows]
        self.draws.select_rows(rows)


def read_prompt_rows(source: Stepper, prompt: Prompt, samples: int) -> tuple[Tensor, DecodingState]:
    """The parameters after each prompt, and a state of its own, `samples` times each."""
    tokens, lengths = prompt.known
    before = None if prompt.state is None else prompt.state.detach().clone()
    parameters, state = source.prefill(tokens, lengths, before, max_length=prompt.positions)
    if samples == 1:
        return parameters, state
    rows = torch.arange(prompt.batch, device=parameters.device).repeat_interleave(samples)
    return parameters[rows], state.index_select(rows)


def keep_within_room(state: DecodingState) -> DecodingState:
    """The state, with rows that are complete moved back to the last position that exists."""
    position, room = state.cursor.position, state.max_length
    if room is None or state.cursor.furthest < room or not isinstance(position, Tensor):
        return state
    return replace(state, cursor=Cursor(position.clamp(max=room - 1), room - 1))


class _Known(NamedTuple):
    """In place of a layer's state, all tokens of each row: (B, N) or (B, N, 3)."""

    tokens: Tensor

    def index_select(self, indices: Tensor) -> _Known:
        return _Known(self.tokens.index_select(0, indices))


class Rerun(Stepper):
    """Each token costs a run of all tokens so far (the paper's plain "softmax").

    Args:
        model: has `predict_next`.
    """

    def __init__(self, model: Any) -> None:
        self.head: Head = model.head
        self._model = model

    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """A run of the prompts, in memory for `max_length` positions, which it needs."""
        batch, length = tokens.shape[:2]
        known = tokens.new_zeros(batch, cast(int, max_length) - 1, *tokens.shape[2:])
        known[:, :length] = tokens
        cursor = START.after(length + 1, None if lengths is None else lengths + 1)
        layers = cast(tuple[LayerState, ...], (_Known(known),))
        recent = remember(None, tokens, lengths, NOTHING)
        return self._run(DecodingState(layers, cursor, max_length, recent=recent))

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """A run with one more token of each row."""
        known, device = state.layers[0][0], token.device
        places = state.cursor.rows(len(token), device) - 1  # the start vector counts
        known[torch.arange(len(token), device=device), places] = token
        return self._run(replace(state, cursor=state.cursor.after(1, None), recent=None))

    def _run(self, state: DecodingState) -> tuple[Tensor, DecodingState]:
        position = state.cursor.position
        lengths = position - 1 if isinstance(position, Tensor) else None
        known = state.layers[0][0][:, : state.cursor.furthest - 1]
        return self._model.predict_next(known, lengths), state


class Places:
    """Rows in places that sequences take and leave, in memory that is allocated once.

    A state is copied only when it joins, or when it moves to the place of one that left.

    Args:
        source: makes the steps.
        start: the state of one sequence before its first token.
        most: the most sequences.
        device: of the model.

    Attributes:
        rows: the rows that are stepped, also those without a sequence.
        owners: whose row is in each place; None for nobody's.
    """

    def __init__(
        self, source: Stepper, start: DecodingState, most: int, device: torch.device
    ) -> None:
        # On a GPU, the number of rows is fixed, because a graph is recorded for each number.
        self._is_fixed = device.type != "cpu"
        self._start = start
        # Normal tensors, not inference tensors, so that steps may write them in either mode.
        with torch.inference_mode(False):
            self._memory = tuple(
                type(layer)(*(x.new_zeros(most, *x.shape[1:]) for x in layer))
                for layer in start.layers
            )
        self._positions = torch.zeros(most, dtype=torch.int64)  # of the next inputs
        self._moves = torch.zeros(most, dtype=torch.int64)  # 1 for places with a sequence
        first = most if self._is_fixed else 1
        self.owners: list[Any] = [None] * first
        head = source.head
        tokens = torch.zeros((first, *token_shape(head)), dtype=torch.int64, device=device)
        draws = start_draws(_NOBODY, first, head, device)
        self.rows = Rows(source, start, tokens, draws)
        self._show(first)
        self._write(torch.arange(first, device=device), start)

    @property
    def count(self) -> int:
        """The sequences."""
        return sum(owner is not None for owner in self.owners)

    def active(self) -> Iterator[tuple[int, Any]]:
        """The places with a sequence, and their owners."""
        return ((place, owner) for place, owner in enumerate(self.owners) if owner is not None)

    def join(
        self, owners: Sequence[Any], state: DecodingState, tokens: Tensor, draws: Draws
    ) -> list[int]:
        """Gives sequences that continue one state places; returns these.

        Args:
            tokens: the first token of each.
            draws: of these sequences.
        """
        places = self._free_places(len(owners))
        where = torch.tensor(places, device=tokens.device)
        self._write(where, state)
        self.rows.tokens[where] = tokens
        self.rows.draws.put(where, draws)
        self._positions[places] = state.cursor.furthest
        self._moves[places] = 1
        for place, owner in zip(places, owners, strict=True):
            self.owners[place] = owner
        return places

    def leave(self, place: int) -> None:
        """Frees a place."""
        self.owners[place] = None
        self._positions[place] = self._moves[place] = 0
        self._clear([place])

    def compact(self) -> None:
        """Drops places without a sequence.

        The last sequences move to the places of those that left.
        """
        left = self.count
        if self._is_fixed or left >= len(self.owners):
            return
        free = [place for place in range(left) if self.owners[place] is None]
        moved = [place for place, _ in self.active() if place >= left]
        order = torch.arange(left)
        order[free[: len(moved)]] = torch.tensor(moved, dtype=torch.int64)
        for place, row in zip(free, moved, strict=False):
            for x in self._tensors():
                x[place] = x[row]
        self.owners = [self.owners[place] for place in order.tolist()]
        for x in (self._positions, self._moves):
            x[:left] = x[order]
        self.rows.tokens = self.rows.tokens[order]
        self.rows.draws.select_rows(order)
        self._show(left)

    def advance(self, most: int) -> tuple[Tensor, Tensor]:
        """As `Rows.advance`."""
        rows, positions = self.rows, self._positions[: len(self.owners)]
        # A tensor, also of one row: native decoders step that as they step it beside others.
        cursor = Cursor(positions, int(positions.max())).to(rows.tokens.device)
        rows.state = replace(rows.state, cursor=cursor)
        parameters, tokens = rows.advance(most)
        self._positions += len(tokens) * self._moves
        self._keep(rows.state)
        return parameters, tokens

    def state_of(self, place: int) -> DecodingState:
        """The state of one row before its last token, as a copy."""
        state = replace(self.rows.state, parameters=None, cursor=Cursor(0, 0))
        cursor = Cursor.at(self._positions[place : place + 1])
        return replace(state.index_select([place]), cursor=cursor)

    def _free_places(self, count: int) -> list[int]:
        """Places without a sequence, the first ones; adds some where there are too few."""
        before = len(self.owners)
        more = self.count + count - before
        if more > 0:
            self.owners += [None] * more
            order = torch.tensor([*range(before), *[0] * more])
            self.rows.tokens = self.rows.tokens[order]
            self.rows.draws.select_rows(order)
            self._show(before + more)
        return [place for place, owner in enumerate(self.owners) if owner is None][:count]

    @torch.inference_mode()
    def _clear(self, places: Sequence[int]) -> None:
        """Ends filters and penalties of places without a sequence; they cost time in all rows."""
        draws, tokens = self.rows.draws, self.rows.tokens
        if draws.has_filters or draws.reads_tokens:
            nobody = start_draws(_NOBODY, len(places), self.rows.source.head, tokens.device)
            draws.put(torch.tensor(places, device=tokens.device), nobody)

    @torch.no_grad()
    def _write(self, places: Tensor, state: DecodingState) -> None:
        """Copies the state of one sequence to places."""
        own, new = self._tensors(), (x for layer in state.layers for x in layer)
        for x, y in zip(own, new, strict=True):
            x[places] = y

    def _keep(self, state: DecodingState) -> None:
        """Copies into the memory what an attention returned that does not step in place."""
        after = (x for layer in state.layers for x in layer)
        copies = [
            (x, y.clone())  # y may be another part of the memory
            for x, y in zip(self._tensors(), after, strict=True)
            if x.data_ptr() != y.data_ptr()
        ]
        for x, y in copies:
            x[: len(y)] = y
        if copies:
            self._show(len(self.owners))

    def _tensors(self) -> Iterator[Tensor]:
        return (x for layer in self._memory for x in layer)

    def _show(self, count: int) -> None:
        """Steps the first `count` rows of the memory."""
        layers = tuple(type(layer)(*(x[:count] for x in layer)) for layer in self._memory)
        start = self._start
        self.rows.state = DecodingState(layers, start.cursor, start.max_length)
