"""Predictors of the next token: by a step from a state, or by running all tokens again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from linattn_models.decoding.model import TokenModel
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import Sampling
from linattn_models.state import Cursor, DecodingState


class Predictor(Protocol):
    """Draws the next token of each row; `take` then appends it.

    Rows that are complete stay at their last position, and their draws are ignored.
    """

    @property
    def state(self) -> DecodingState | None:
        """The state of all rows before the token that was drawn last; None without a state."""

    def draw(self, sampling: Sampling, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """The parameters (B, P) and tokens (B,) or (B, 3) drawn from them, not yet taken.

        Args:
            sampling: how tokens are drawn.
            ahead: how many draws follow, with this one. All have this sampling, each token is taken
                unchanged, and `keep` is not called between them. A predictor may draw them all now;
                `state` is then the one before the last of these tokens.
        """

    def take(self, token: Tensor) -> None:
        """Appends one token to each row."""

    def keep(self, rows: Tensor) -> None:
        """Continues with these rows only (any number, repeats allowed)."""

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """The state after one more token (B,) or (B, 3) of each row."""


# Makes the predictor that continues a prompt.
Begin = Callable[[Prompt], Predictor]


class Predicting:
    """The method that the mixins `Drawing` and `Searching` need."""

    def predictor(self, method: str, decoder: Any, prompt: Prompt) -> Begin:
        """Makes the predictor that continues a prompt with this method and decoder.

        Raises:
            ValueError: a method or decoder that is unknown or does not fit, or a model in training
                mode with dropout.
        """
        raise NotImplementedError


class StatefulPredictor:
    """An RNN: each token costs one step from the state."""

    state: DecodingState

    def __init__(self, model: TokenModel, prompt: Prompt) -> None:
        self.model = model
        self.parameters, self.state = prefilled(model, prompt)

    def draw(self, sampling: Sampling, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """Draws from the parameters after the last token taken."""
        return self.parameters, sampling.draw(self.model.head, self.parameters)

    def take(self, token: Tensor) -> None:
        """One step."""
        self.parameters, self.state = self.model.step(token, within_room(self.state))

    def keep(self, rows: Tensor) -> None:
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

    def draw(self, sampling: Sampling, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """One run of the whole prefix."""
        parameters = self.model.predict_next(self.tokens, self.lengths)
        return parameters, sampling.draw(self.model.head, parameters)

    def take(self, token: Tensor) -> None:
        """Puts each row's token behind its own tokens."""
        if self.tokens.shape[1] < self.room:
            self.tokens = torch.cat([self.tokens, token.unsqueeze(1)], 1)
        if self.lengths is not None:
            rows = torch.arange(token.shape[0], device=token.device)
            ends = self.lengths.clamp(max=self.room - 1)
            self.tokens = self.tokens.index_put((rows, ends), token)
            self.lengths = (self.lengths + 1).clamp(max=self.room)

    def keep(self, rows: Tensor) -> None:
        """Forks and drops sequences."""
        self.tokens = self.tokens[rows]
        self.lengths = None if self.lengths is None else self.lengths[rows]

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """Not possible without a state; `Prompt.check_stateless` refuses such calls before."""
        raise NotImplementedError


def prefilled(model: TokenModel, prompt: Prompt) -> tuple[Tensor, DecodingState]:
    """Prefills a prompt: the parameters after it, and a state that nothing else uses."""
    tokens, lengths = prompt.known
    before = None if prompt.state is None else prompt.state.detach().clone()
    return model.prefill(tokens, lengths, before, max_length=prompt.positions)


def within_room(state: DecodingState) -> DecodingState:
    """The state, with rows that are complete moved back to the last position that exists."""
    position, room = state.cursor.position, state.max_length
    if room is None or state.cursor.furthest < room or not isinstance(position, Tensor):
        return state
    return replace(state, cursor=Cursor(position.clamp(max=room - 1), room - 1))
