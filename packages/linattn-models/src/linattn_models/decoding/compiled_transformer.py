"""Compiled steps of vectors, and what they share with those of tokens."""

from __future__ import annotations

from typing import NoReturn, TypeGuard, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import NativeDecoder
from linattn_core.errors import expected
from linattn_models.attention.config import Linear
from linattn_models.basics.validation import (
    at_least,
    check_vector_sequences,
    check_vectors,
    lengths_within,
)
from linattn_models.layers.config import TransformerConfig
from linattn_models.state import (
    START,
    DecodingState,
    FixedState,
    LayerState,
    check_prompts,
    zero_states,
)


class Compiled:
    """What decoders of tokens and of vectors share.

    Attributes:
        weights: the name of the dtype of the packed matrices.
        native: the decoder with the packed weights; see `NativeDecoder`.
    """

    def __init__(
        self, config: TransformerConfig, weights: str, native: NativeDecoder, device: torch.device
    ) -> None:
        self.weights = weights
        self.native = native
        self._config = config
        self._device = device

    @property
    def config(self) -> TransformerConfig:
        """The configuration of the layers."""
        return self._config

    @property
    def device(self) -> torch.device:
        """The device of inputs, outputs and states."""
        return self._device

    def __repr__(self) -> str:
        packed = f"{self.weights} weights, {self.native.nbytes:,} bytes"
        return f"{type(self).__name__}({packed}, {self.native.instruction_set})"

    def __reduce__(self) -> NoReturn:
        wanted, advice = "no copying or pickling", "save the model and call load_decoder(folder)"
        raise TypeError(expected(f"a {type(self).__name__}", wanted, "one of them", advice))

    def _zeros(self, batch: int) -> tuple[FixedState, ...]:
        config = self._config
        heads, dim = config.num_kv_heads or config.num_heads, config.head_dim
        attention, sizes = cast(Linear, config.attention), (config.num_layers, batch, heads, dim)
        gated = attention.decay == "gated"
        return zero_states(*sizes, self._device, attention.window_size, gated)


class CompiledTransformer(Compiled):
    """The decoding interface of a `Transformer`: (B, E) -> (B, E); updates states in place.

    Later changes of the model's weights do not reach it. Its results have no gradients.
    """

    def initial_state(self, batch: int, *, max_length: int | None = None) -> DecodingState:
        """The state before the first position, as `Transformer.initial_state`."""
        batch = at_least("batch", batch, 1)
        if max_length is not None:
            max_length = at_least("max_length", max_length, 1)
        return DecodingState(self._zeros(batch), START, max_length)

    def prefill(
        self, x: Tensor, lengths: Tensor | None = None, *, max_length: int | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `Transformer.prefill`."""
        check_vector_sequences(x, self.config.embed_dim)
        self._check_place(x)
        batch, length = x.shape[:2]
        check_prompts(length, max_length)
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            lengths = lengths.to(self.device, torch.int64)
        layers = self._zeros(batch)
        state = DecodingState(layers, START.after(length, lengths), max_length)
        return self.native.prefill(x.detach(), lengths, layers), state

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `Transformer.step`, but always updates the state in place."""
        check_vectors(x, self.config.embed_dim)
        self._check_place(x)
        state.check_step(x.shape[0])
        self.native.check(layers_of(state), x.shape[0])
        y, _ = self.native.step(x.detach(), state.position, layers_of(state), None)
        return y, advance(state, None)

    def _check_place(self, x: Tensor) -> None:
        if x.dtype != torch.float32 or x.device != self.device:
            got = f"{x.dtype} on {x.device}"
            raise TypeError(expected("x", f"float32 on {self.device}", got, "convert it by .to()"))


def advance(state: DecodingState, parameters: Tensor | None, count: int = 1) -> DecodingState:
    """The state `count` positions later, with the same memory."""
    cursor = state.cursor.after(count, None)
    return DecodingState(state.layers, cursor, state.max_length, parameters, state.fingerprint)


def layers_of(state: DecodingState) -> tuple[FixedState, ...]:
    """The layers of a state; refuses those of other attention."""
    layers = state.layers
    if _are_fixed(layers):
        return layers
    wanted, got = "sums, with a window or without", f"a {type(layers[0]).__name__}"
    raise TypeError(expected("a layer's state", wanted, got))


def _are_fixed(layers: tuple[LayerState, ...]) -> TypeGuard[tuple[FixedState, ...]]:
    return all(isinstance(layer, FixedState) for layer in layers)
