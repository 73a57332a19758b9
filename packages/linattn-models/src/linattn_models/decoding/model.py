"""The protocols of models that can be decoded."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from linattn_core.decoder_spec import DecoderDescription
from linattn_models.config import TransformerConfig
from linattn_models.heads import Head
from linattn_models.state import DecodingState


class DescribedModel(Protocol):
    """A model from which a decoder can be compiled."""

    @property
    def config(self) -> TransformerConfig: ...

    def describe(self) -> DecoderDescription:
        """Its weights and settings.

        Raises:
            CannotCompile: the model has no compiled step.
        """


class VectorModel(DescribedModel, Protocol):
    """A model of vectors, as `Transformer` is."""

    def initial_state(self, batch: int, *, max_length: int | None = None) -> DecodingState:
        """The state before the first position."""


class Drawable(Protocol):
    """A source of tokens: a model, or a decoder compiled from one.

    Attributes:
        head: the distribution of a token.
        max_length: the default number of tokens in a sequence, or None.
    """

    head: Head
    max_length: int | None

    @property
    def config(self) -> TransformerConfig:
        """The configuration of the layers."""

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence; None for no limit."""

    @property
    def device(self) -> torch.device:
        """The device of tokens and parameters."""


class TokenModel(Drawable, DescribedModel, Protocol):
    """A model of tokens, with the inputs, results and errors of `AutoregressiveTransformer`.

    Attributes:
        training: whether the model is in training mode, in which `predict_next` uses dropout.
    """

    training: bool

    @property
    def can_step(self) -> bool:
        """Whether `prefill` and `step` work; if not, only `predict_next` does."""

    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """(B, N) -> the parameters (B, P) for the token after each prompt, and the state."""

    def describe(self, positions: int | None = None) -> DecoderDescription:
        """As `DescribedModel.describe`, for at least so many positions."""

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """(B,) -> the parameters (B, P) for the next token, and the next state."""

    def predict_next(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """(B, N) -> the parameters (B, P) for the token after each prompt, without a state."""
