"""Decoding with packed weights: a whole step of a model in one native call, or one CUDA graph."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NoReturn, Protocol, cast

import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.decoding import DecoderDescription, Draw, NativeDecoder
from linattn_models.config import TransformerConfig
from linattn_models.generation import Begin, Generating
from linattn_models.graphed import GraphedDecoder
from linattn_models.heads import Head
from linattn_models.heads.base import (
    Drawn,
    check_sequences,
    check_step_shape,
    check_temperature,
    redraw,
)
from linattn_models.state import (
    Cursor,
    DecodingState,
    check_positions,
    check_prompts,
    room_for,
    zero_states,
)
from linattn_models.validation import (
    at_least,
    check_vector_sequences,
    check_vectors,
    lengths_within,
)


class TokenModel(Protocol):
    """What `compile_decoder` needs of an `AutoregressiveTransformer`."""

    head: Head
    max_length: int

    @property
    def config(self) -> TransformerConfig: ...

    @property
    def device(self) -> torch.device: ...

    def describe(self) -> DecoderDescription: ...


class _Compiled:
    """What decoders of tokens and of vectors share: packed weights and the states they update.

    Attributes:
        config: of the layers.
        weights: how their matrices are kept.
        native: what runs; `native.nbytes` are the bytes packed.
    """

    def __init__(
        self,
        config: TransformerConfig,
        weights: str,
        native: NativeDecoder,
        device: torch.device,
    ) -> None:
        self.config = config
        self.weights = weights
        self.native = native
        self._device = device

    @property
    def device(self) -> torch.device:
        """Where inputs, outputs and states are."""
        return self._device

    def __repr__(self) -> str:
        """What it is, how its weights are kept and what they were packed for."""
        kept = f"{self.weights} weights, {self.native.nbytes:,} bytes"
        return f"{type(self).__name__}({kept}, {self.native.instruction_set})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled; save the model and compile it "
            "where it is used."
        )

    def _zeros(self, batch: int) -> tuple[LinearAttentionState, ...]:
        config = self.config
        heads, dim = config.num_heads, config.head_dim
        return zero_states(config.num_layers, batch, heads, dim, self.device)

    def _check_vectors(self, x: Tensor) -> None:
        if x.dtype != torch.float32 or x.device != self.device:
            raise TypeError(
                f"A compiled decoder takes float32 on {self._where} and got {x.dtype} on "
                f"{x.device}."
            )

    def _check_tokens(self, tokens: Tensor) -> None:
        if tokens.device != self.device:
            raise ValueError(
                f"A compiled decoder takes tokens on {self._where} and got some on {tokens.device}."
            )

    @property
    def _where(self) -> str:
        return "the CPU" if self.device.type == "cpu" else str(self.device)


class CompiledTransformer(_Compiled):
    """The decoding interface of a `Transformer`: (B, E) -> (B, E), with the state updated in place.

    Later changes of the model's weights do not reach it. Nothing that it returns has a gradient.
    """

    def initial_state(self, batch: int, *, max_length: int | None = None) -> DecodingState:
        """The state before the first position, as the model's own."""
        at_least("batch", batch, 1)
        if max_length is not None:
            at_least("max_length", max_length, 1)
        return DecodingState(self._zeros(batch), Cursor(0, 0), max_length)

    def prefill(
        self, x: Tensor, lengths: Tensor | None = None, *, max_length: int | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `Transformer.prefill`."""
        check_vector_sequences(x, self.config.embed_dim)
        self._check_vectors(x)
        batch, length = x.shape[:2]
        check_prompts(length, max_length)
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            lengths = lengths.to(self.device, torch.int64)
        state = DecodingState(self._zeros(batch), Cursor.after(length, lengths), max_length)
        return self.native.prefill(x.detach(), lengths, _layers(state)), state

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `Transformer.step`, the state updated in place whether gradients are on or not."""
        check_vectors(x, self.config.embed_dim)
        self._check_vectors(x)
        state.check_step(x.shape[0])
        y, _ = self.native.step(x.detach(), state.position, _layers(state), None)
        return y, _advanced(state)


class CompiledDecoder(_Compiled, Generating):
    """The decoding interface of an `AutoregressiveTransformer`, each call one native call.

    States are those of the model: either takes over from the other at any position. Later changes
    of the model's weights do not reach the decoder. Nothing that it returns has a gradient.

    Attributes:
        head, max_length: of the model.
    """

    def __init__(
        self,
        model: TokenModel,
        weights: str,
        native: NativeDecoder,
        device: torch.device,
        *,
        draws_inside: bool,
    ) -> None:
        super().__init__(model.config, weights, native, device)
        self.head = model.head
        self.max_length = model.max_length
        self._drawn = cast(Drawn, model.head) if draws_inside else None

    def prefill(
        self, tokens: Tensor, lengths: Tensor | None = None, *, max_length: int | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.prefill`."""
        room = room_for(max_length, self.max_length)
        self._check_tokens(tokens)
        check_sequences(self.head, tokens, 0, room - 1)
        batch, length = tokens.shape[:2]
        inputs = None
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            inputs = lengths.to(self.device, torch.int64) + 1  # the start vector counts
        state = DecodingState(self._zeros(batch), Cursor.after(length + 1, inputs), room)
        return self.native.prefill(tokens, inputs, _layers(state)), state

    def prefill_held(
        self, tokens: Tensor, max_length: int, holder: object
    ) -> tuple[Tensor, DecodingState]:
        """As `prefill`, but where a decoder has states of its own, those, lent to the holder.

        See `GraphedDecoder.lend` for what the holder may do with them.
        """
        if not isinstance(self.native, GraphedDecoder):
            return self.prefill(tokens, max_length=max_length)
        batch, length = tokens.shape[:2]
        layers = self.native.lend(batch, holder)
        state = DecodingState(layers, Cursor(length + 1, length + 1), max_length)
        return self.native.prefill(tokens, None, layers), state

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.step`, the state updated in place in any case."""
        self._check_step(token, state)
        parameters, _ = self.native.step(token, state.position, _layers(state), None)
        return parameters, _advanced(state)

    def step_and_sample(
        self,
        token: Tensor,
        state: DecodingState,
        *,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """A step and the draw that follows it, which `head.sample` would make, in one call.

        Args:
            token, state: as for `step`.
            temperature, generator: as for the head's `sample`.

        Returns:
            (B, P) parameters, the next tokens (B,) or (B, 3), and the next state.

        Raises:
            ValueError, TypeError: as for `step`, or a negative temperature.
        """
        check_temperature(temperature)
        self._check_step(token, state)
        if self._drawn is None:
            parameters, state = self.step(token, state)
            drawn = self.head.sample(parameters, temperature=temperature, generator=generator)
            return parameters, drawn, state
        noise = self._noise(state, temperature, generator)
        parameters, next_token = self.native.step(token, state.position, _layers(state), noise)
        return parameters, cast(Tensor, next_token), _advanced(state)

    def begin(self, method: str, decoder: str | CompiledDecoder, steps: int) -> Begin:
        """How sequences begin that this decoder draws; see `generation.Generating`."""
        if method != "stateful" or decoder not in ("auto", self):
            raise ValueError(
                "A compiled decoder draws by its own steps and was asked for "
                f"method={method!r} with decoder={decoder!r}; call the model's generate instead."
            )
        return partial(FusedPredictor, self)

    def check_decodes(self, model: TokenModel) -> None:
        """Refuses a model of another shape than that which this was compiled from."""
        for name in ("config", "head", "max_length", "device"):
            mine, other = getattr(self, name), getattr(model, name)
            if mine != other:
                raise ValueError(
                    f"The decoder was compiled from a model with {name} {mine} and the model has "
                    f"{other}; compile this model, or call the decoder's own generate."
                )

    def _noise(
        self, state: DecodingState, temperature: float, generator: torch.Generator | None
    ) -> Draw:
        """The head's random numbers, drawn where a graph reads them if it has a place for them."""
        if isinstance(self.native, GraphedDecoder):
            draw = self.native.numbers(_layers(state), temperature)
            if draw is not None:
                redraw(draw, generator)
                return draw
        like = state.layers[0][0]
        return cast(Drawn, self._drawn).noise((state.batch,), temperature, generator, like=like)

    def _check_step(self, token: Tensor, state: DecodingState) -> None:
        check_step_shape(self.head, token)
        self._check_tokens(token)
        if token.dtype != torch.int64:
            raise TypeError(f"tokens must be int64 and are {token.dtype}; convert them by .long().")
        check_positions(state.cursor, self.max_length)
        state.check_step(token.shape[0])


class FusedPredictor:
    """A step and the draw after it are one call, made when the draw is asked for."""

    def __init__(self, decoder: CompiledDecoder, known: Tensor, length: int) -> None:
        self.decoder = decoder
        self.parameters, self.state = decoder.prefill_held(known, length, self)
        self.taken: Tensor | None = None

    def draw(self, temperature: float, generator: torch.Generator | None) -> Tensor:
        """From the parameters after the last token taken."""
        if self.taken is None:
            return self.decoder.head.sample(
                self.parameters, temperature=temperature, generator=generator
            )
        _, drawn, self.state = self.decoder.step_and_sample(
            self.taken, self.state, temperature=temperature, generator=generator
        )
        return drawn

    def take(self, token: Tensor) -> None:
        """Remembers the token for the next draw."""
        self.taken = token


def _layers(state: DecodingState) -> tuple[LinearAttentionState, ...]:
    for layer in state.layers:
        if not isinstance(layer, LinearAttentionState):
            raise TypeError(
                "A compiled decoder steps from a LinearAttentionState for each layer and got a "
                f"{type(layer).__name__}."
            )
    return cast(tuple[LinearAttentionState, ...], state.layers)


def _advanced(state: DecodingState) -> DecodingState:
    return replace(state, cursor=state.cursor.advanced())
