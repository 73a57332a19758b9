"""Prompts that continue a state, for a decoder that can only read them token by token."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, cast

import torch
from torch import Tensor

from linattn_models.decoding.vectors import layers_of
from linattn_models.heads import Head
from linattn_models.heads.base import check_sequences
from linattn_models.state import Cursor, DecodingState, check_end, known_parameters
from linattn_models.validation import lengths_within


class Steps(Protocol):
    """A decoder whose `step` updates the state in place."""

    head: Head

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """(B,) -> the parameters (B, P) for the next token, and the next state."""


def step_through(
    decoder: Steps,
    tokens: Tensor,
    lengths: Tensor | None,
    state: DecodingState,
    room: int | None,
) -> tuple[Tensor, DecodingState]:
    """As `AutoregressiveTransformer.prefill` from a state; updates the state in place."""
    check_sequences(decoder.head, tokens, 0, None)
    if lengths is not None:
        lengths_within("lengths", lengths, *tokens.shape[:2])
        lengths = lengths.to(tokens.device, torch.int64)
    check_end(state.cursor.after(tokens.shape[1], lengths), room)
    known_parameters(state, tokens.shape[1], lengths)
    state = state.with_room(room)
    for column, token in enumerate(tokens.unbind(1)):
        rows = None if lengths is None else (lengths > column).nonzero().squeeze(1)
        if rows is None or len(rows) == len(token):
            _, state = decoder.step(token, state)
        elif len(rows):
            _, longer = decoder.step(token[rows], state.index_select(rows))
            state = _with_rows(state, rows, longer)
    return cast(Tensor, state.parameters), state


def cut(lengths: Tensor, first: int) -> tuple[Tensor, Tensor]:
    """How many of the tokens of each row are among the first `first` ones, and how many after."""
    return lengths.clamp(max=first), (lengths - first).clamp(min=0)


def _with_rows(state: DecodingState, rows: Tensor, other: DecodingState) -> DecodingState:
    """The state with `rows` replaced by those of `other`; its layers are updated in place."""
    for own, new in zip(layers_of(state), layers_of(other), strict=True):
        own.s.index_copy_(0, rows, new.s)
        own.z.index_copy_(0, rows, new.z)
    position = state.cursor.rows(state.batch, rows.device).clone()
    position[rows] = other.cursor.rows(len(rows), rows.device)
    parameters = cast(Tensor, state.parameters).clone()
    parameters[rows] = cast(Tensor, other.parameters)
    return replace(state, cursor=Cursor.at(position), parameters=parameters)
