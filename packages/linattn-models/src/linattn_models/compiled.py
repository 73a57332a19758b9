"""Decoding with packed weights: a whole step of a model in one call of a native backend."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import NoReturn, Protocol, cast, overload

import torch
from torch import Tensor

from linattn_core import LinearAttentionState, registry
from linattn_core.decoding import (
    WEIGHTS,
    CannotCompile,
    DecoderDescription,
    NativeDecoder,
)
from linattn_models.config import TransformerConfig
from linattn_models.generation import DECODERS, Begin, Generating
from linattn_models.heads import Head
from linattn_models.heads.base import (
    Drawn,
    check_sequences,
    check_step_shape,
    check_temperature,
)
from linattn_models.state import (
    Cursor,
    DecodingState,
    check_positions,
    check_prompts,
    room_for,
)
from linattn_models.transformer import Transformer, check_vector_sequences, check_vectors
from linattn_models.validation import at_least, lengths_within, one_of

# Steps that are worth packing the weights for, which costs about as much as so many of them.
_FEWEST_STEPS = 16


class TokenModel(Protocol):
    """What `compile_decoder` needs of an `AutoregressiveTransformer`."""

    head: Head
    max_length: int

    @property
    def config(self) -> TransformerConfig: ...

    def describe(self) -> DecoderDescription: ...


class _Compiled:
    """What decoders of tokens and of vectors share: packed weights and the states they update.

    Attributes:
        config: of the layers.
        weights: how their matrices are kept.
        native: what runs; `native.nbytes` are the bytes packed.
    """

    def __init__(self, config: TransformerConfig, weights: str, native: NativeDecoder) -> None:
        self.config = config
        self.weights = weights
        self.native = native

    def __repr__(self) -> str:
        """What it is, how its weights are kept and what they were packed for."""
        kept = f"{self.weights} weights, {self.native.nbytes:,} bytes"
        return f"{type(self).__name__}({kept}, {self.native.instruction_set})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"A {type(self).__name__} cannot be copied or pickled; save the model and compile it "
            "where it is used."
        )

    def _state(self, batch: int, cursor: Cursor, max_length: int | None) -> DecodingState:
        heads, dim = self.config.num_heads, self.config.head_dim
        layers = tuple(
            LinearAttentionState.zeros(batch, heads, dim, dim, dtype=torch.float32, device="cpu")
            for _ in range(self.config.num_layers)
        )
        return DecodingState(layers, cursor, max_length)


class CompiledTransformer(_Compiled):
    """The decoding interface of a `Transformer`: (B, E) -> (B, E), with the state updated in place.

    Later changes of the model's weights do not reach it. Nothing that it returns has a gradient.
    """

    def initial_state(self, batch: int, *, max_length: int | None = None) -> DecodingState:
        """The state before the first position, as the model's own."""
        at_least("batch", batch, 1)
        if max_length is not None:
            at_least("max_length", max_length, 1)
        return self._state(batch, Cursor(0, 0), max_length)

    def prefill(
        self, x: Tensor, lengths: Tensor | None = None, *, max_length: int | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `Transformer.prefill`."""
        check_vector_sequences(x, self.config.embed_dim)
        _check_float32(x)
        batch, length = x.shape[:2]
        check_prompts(length, max_length)
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            lengths = lengths.long()
        state = self._state(batch, Cursor.after(length, lengths), max_length)
        return self.native.prefill(x.detach(), lengths, _layers(state)), state

    def step(self, x: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `Transformer.step`, the state updated in place whether gradients are on or not."""
        check_vectors(x, self.config.embed_dim)
        _check_float32(x)
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
        self, model: TokenModel, weights: str, native: NativeDecoder, *, draws_inside: bool
    ) -> None:
        super().__init__(model.config, weights, native)
        self.head = model.head
        self.max_length = model.max_length
        self._drawn = cast(Drawn, model.head) if draws_inside else None

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def prefill(
        self, tokens: Tensor, lengths: Tensor | None = None, *, max_length: int | None = None
    ) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.prefill`."""
        room = room_for(max_length, self.max_length)
        _check_cpu(tokens)
        check_sequences(self.head, tokens, 0, room - 1)
        batch, length = tokens.shape[:2]
        inputs = None
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            inputs = lengths.long() + 1  # the start vector counts
        state = self._state(batch, Cursor.after(length + 1, inputs), room)
        return self.native.prefill(tokens, inputs, _layers(state)), state

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
        noise = self._drawn.noise((state.batch,), temperature, generator, like=state.layers[0][0])
        parameters, next_token = self.native.step(token, state.position, _layers(state), noise)
        return parameters, cast(Tensor, next_token), _advanced(state)

    def begin(self, method: str, decoder: str | CompiledDecoder, steps: int) -> Begin:
        """How sequences begin that this decoder draws; see `generation.Generating`."""
        if method != "stateful" or decoder not in ("auto", self):
            raise ValueError(
                "A compiled decoder draws by its own steps and was asked for "
                f"method={method!r} with decoder={decoder!r}; call the model's generate instead."
            )
        return partial(_FusedPredictor, self)

    def check_decodes(self, model: TokenModel) -> None:
        """Refuses a model of another shape than that which this was compiled from."""
        own = (self.config, self.head, self.max_length)
        names = ("config", "head", "max_length")
        for name, mine, other in zip(
            names, own, (model.config, model.head, model.max_length), strict=True
        ):
            if mine != other:
                raise ValueError(
                    f"The decoder was compiled from a model with {name} {mine} and the model has "
                    f"{other}; compile this model, or call the decoder's own generate."
                )

    def _check_step(self, token: Tensor, state: DecodingState) -> None:
        check_step_shape(self.head, token)
        _check_cpu(token)
        if token.dtype != torch.int64:
            raise TypeError(f"tokens must be int64 and are {token.dtype}; convert them by .long().")
        check_positions(state.cursor, self.max_length)
        state.check_step(token.shape[0])


class _FusedPredictor:
    """A step and the draw after it are one call, made when the draw is asked for."""

    def __init__(self, decoder: CompiledDecoder, known: Tensor, length: int) -> None:
        self.decoder = decoder
        self.parameters, self.state = decoder.prefill(known, max_length=length)
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


@overload
def compile_decoder(
    model: Transformer, weights: str = ..., backend: str = ...
) -> CompiledTransformer: ...
@overload
def compile_decoder(
    model: TokenModel, weights: str = ..., backend: str = ...
) -> CompiledDecoder: ...
def compile_decoder(
    model: Transformer | TokenModel, weights: str = "float32", backend: str = "auto"
) -> CompiledTransformer | CompiledDecoder:
    """Packs a model's weights for decoding; whole steps and prompts are then one native call each.

    Args:
        model: an `AutoregressiveTransformer` or a bare `Transformer`, with causal linear attention
            and a feature map of each number alone ("elu", "relu", "identity"), in float32 on the
            CPU. Decoding never drops out, whatever mode the model is in.
        weights: "float32" gives the model's own numbers to rounding. "bfloat16" rounds each weight
            to 2^-9 of itself, "int8" to 1/254 of the largest weight of its output; both are read in
            a half and a quarter of the time. What else a backend rounds, it says.
        backend: one that compiles decoders, or "auto" for the fastest that takes this one.

    Returns:
        A decoder with the model's `prefill`, `step`, `generate` and `stream`.

    Raises:
        CannotCompile (a ValueError): a model that has no compiled step, or no backend that
            compiles it, with the reasons.
        ValueError: unknown weights or backend.

    Cost: memory for the packed weights; time to read the model's once.
    """
    one_of("weights", weights, WEIGHTS)
    if not callable(getattr(model, "describe", None)):
        raise TypeError(
            "compile_decoder takes an AutoregressiveTransformer or a Transformer and got a "
            f"{type(model).__name__}."
        )
    description = model.describe()
    native = _compile(backend, description, weights)
    if description.tokens is None:
        return CompiledTransformer(model.config, weights, native)
    return CompiledDecoder(
        cast(TokenModel, model),
        weights,
        native,
        draws_inside=description.tokens.sampler is not None,
    )


def _compile(backend: str, description: DecoderDescription, weights: str) -> NativeDecoder:
    try:
        return registry.compile_decoder(backend, description, weights)
    except CannotCompile as error:
        if registry.backends() != ("reference",):
            raise
        raise CannotCompile(
            f"{error} No native backend is installed; linattn-cpu, the extra [cpu], is one that "
            "compiles decoders."
        ) from None


def choose_decoder(
    model: TokenModel, decoder: str | CompiledDecoder, steps: int
) -> CompiledDecoder | None:
    """The decoder that `generate` was asked for, or None where the model steps itself.

    Raises:
        ValueError: a name that is unknown, or "compiled" where that cannot be.
    """
    if isinstance(decoder, CompiledDecoder):
        decoder.check_decodes(model)
        return decoder
    one_of("decoder", decoder, DECODERS)
    if decoder == "eager" or (decoder == "auto" and not _worth_compiling(steps)):
        return None
    try:
        return compile_decoder(model)
    except CannotCompile:
        if decoder == "compiled":
            raise
        return None


def _worth_compiling(steps: int) -> bool:
    # Autocast would have the model compute in half precision, which a compiled decoder does not.
    return steps >= _FEWEST_STEPS and not torch.is_autocast_enabled("cpu")


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


def _check_cpu(tokens: Tensor) -> None:
    if not tokens.is_cpu:
        raise ValueError(
            f"A compiled decoder takes tokens on the CPU and got some on {tokens.device}."
        )


def _check_float32(x: Tensor) -> None:
    if x.dtype != torch.float32 or not x.is_cpu:
        raise TypeError(
            f"A compiled decoder takes float32 on the CPU and got {x.dtype} on {x.device}."
        )
