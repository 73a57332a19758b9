"""Predictors that call the model: a step from a state for each token, or a run of all tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, TypeGuard, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import DecoderDescription
from linattn_core.errors import expected
from linattn_models.config import TransformerConfig
from linattn_models.decoding.prompts import Prompt, TokenSource
from linattn_models.decoding.sampling import Draws
from linattn_models.heads import Head
from linattn_models.heads.base import check_sequences
from linattn_models.state import (
    Cursor,
    DecodingState,
    FixedState,
    KeyValueCache,
    LayerState,
    check_end,
    known_parameters,
)
from linattn_models.validation import lengths_within


class Prefills(Protocol):
    """A model or decoder with the `prefill` and `step` of `AutoregressiveTransformer`."""

    head: Head

    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """(B, N) -> the parameters (B, P) for the token after each prompt, and the state."""

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """(B,) -> the parameters (B, P) for the next token, and the next state."""


class TokenModel(TokenSource, Prefills, Protocol):
    """A model of tokens, with the inputs, results and errors of `AutoregressiveTransformer`.

    Attributes:
        training: whether the model is in training mode, in which `predict_next` uses dropout.
        can_step: whether `prefill` and `step` work; if not, only `predict_next` does.
    """

    training: bool

    @property
    def config(self) -> TransformerConfig: ...

    @property
    def can_step(self) -> bool: ...

    def describe(self, positions: int | None = None) -> DecoderDescription:
        """Its weights and settings, for at least so many positions."""

    def predict_next(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, N) -> the parameters (B, P) for the token after each prompt, without a state."""


class StatefulPredictor:
    """An RNN: each token costs one step from the state."""

    state: DecodingState

    def __init__(self, model: TokenModel, prompt: Prompt) -> None:
        self.model = model
        self.parameters, self.state = prefill_prompt(model, prompt)

    def draw(self, draws: Draws, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """Draws from the parameters after the last token taken."""
        return self.parameters, draws.draw(self.model.head, self.parameters)

    def append(self, token: Tensor) -> None:
        """One step."""
        self.parameters, self.state = self.model.step(token, keep_within_room(self.state))

    def select_rows(self, rows: Tensor) -> None:
        """Forks and drops states."""
        self.parameters, self.state = self.parameters[rows], self.state.index_select(rows)

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """One step."""
        return self.model.step(token, state)[1]


class RerunPredictor:
    """No state: each token costs a run of all tokens so far (the paper's plain "softmax")."""

    state = None

    def __init__(self, model: TokenModel, prompt: Prompt) -> None:
        self.model = model
        self.tokens, self.lengths = prompt.known
        self.room = prompt.length - 1  # tokens that a row may have when its last one is predicted

    def draw(self, draws: Draws, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """One run of the whole prefix."""
        parameters = self.model.predict_next(self.tokens, self.lengths)
        return parameters, draws.draw(self.model.head, parameters)

    def append(self, token: Tensor) -> None:
        """Puts each row's token behind its own tokens."""
        if self.tokens.shape[1] < self.room:
            self.tokens = torch.cat([self.tokens, token.unsqueeze(1)], 1)
        if self.lengths is not None:
            rows = torch.arange(token.shape[0], device=token.device)
            ends = self.lengths.clamp(max=self.room - 1)
            self.tokens = self.tokens.index_put((rows, ends), token)
            self.lengths = (self.lengths + 1).clamp(max=self.room)

    def select_rows(self, rows: Tensor) -> None:
        """Forks and drops sequences."""
        self.tokens = self.tokens[rows]
        self.lengths = None if self.lengths is None else self.lengths[rows]

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """Not possible without a state; `Prompt.check_stateless` refuses such calls before."""
        raise NotImplementedError


def prefill_prompt(model: Prefills, prompt: Prompt) -> tuple[Tensor, DecodingState]:
    """The parameters after the prompt, and a state that nothing else uses."""
    tokens, lengths = prompt.known
    before = None if prompt.state is None else prompt.state.detach().clone()
    return model.prefill(tokens, lengths, before, max_length=prompt.positions)


def keep_within_room(state: DecodingState) -> DecodingState:
    """The state, with rows that are complete moved back to the last position that exists."""
    position, room = state.cursor.position, state.max_length
    if room is None or state.cursor.furthest < room or not isinstance(position, Tensor):
        return state
    return replace(state, cursor=Cursor(position.clamp(max=room - 1), room - 1))


def check_continuation(
    head: Head,
    tokens: Tensor,
    lengths: Tensor | None,
    state: DecodingState,
    room: int | None,
) -> tuple[Tensor | None, Tensor | None]:
    """The lengths as int64, and the parameters that rows without tokens keep, if there are any."""
    check_sequences(head, tokens, 0, None)
    if lengths is not None:
        lengths_within("lengths", lengths, *tokens.shape[:2])
        lengths = lengths.to(tokens.device, torch.int64)
    check_end(state.cursor.after(tokens.shape[1], lengths), room)
    return lengths, known_parameters(state, tokens.shape[1], lengths)


def step_through(
    decoder: Prefills,
    tokens: Tensor,
    lengths: Tensor | None,
    state: DecodingState,
    room: int | None,
) -> tuple[Tensor, DecodingState]:
    """As `AutoregressiveTransformer.prefill` from a state; updates the state in place."""
    lengths, _ = check_continuation(decoder.head, tokens, lengths, state, room)
    state = state.with_room(room)
    for column, token in enumerate(tokens.unbind(1)):
        rows = None if lengths is None else (lengths > column).nonzero().squeeze(1)
        if rows is None or len(rows) == len(token):
            _, state = decoder.step(token, state)
        elif len(rows):
            _, longer = decoder.step(token[rows], state.index_select(rows))
            state = _replace_rows(state, rows, longer)
    return cast(Tensor, state.parameters), state


def layers_of(state: DecodingState) -> tuple[FixedState, ...]:
    """The layers of a state; refuses key/value caches."""
    layers = state.layers
    if _are_fixed(layers):
        return layers
    wanted, got = "one of fixed size to step from", "a KeyValueCache"
    raise TypeError(expected("a layer's state", wanted, got))


def _are_fixed(layers: tuple[LayerState, ...]) -> TypeGuard[tuple[FixedState, ...]]:
    return not any(isinstance(layer, KeyValueCache) for layer in layers)


def _replace_rows(state: DecodingState, rows: Tensor, other: DecodingState) -> DecodingState:
    """The state with `rows` replaced by those of `other`; its layers are updated in place."""
    for own, new in zip(layers_of(state), layers_of(other), strict=True):
        for x, y in zip(own, new, strict=True):
            x.index_copy_(0, rows, y)
    position = state.cursor.rows(state.batch, rows.device).clone()
    position[rows] = other.cursor.rows(len(rows), rows.device)
    parameters = cast(Tensor, state.parameters).clone()
    parameters[rows] = cast(Tensor, other.parameters)
    return replace(state, cursor=Cursor.at(position), parameters=parameters)
