"""Compiled decoders: packed weights, with the interface of the model, of vectors or of tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NoReturn, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import DecoderDescription, NativeDecoder, TokenCoding
from linattn_core.errors import expected
from linattn_models.basics.validation import (
    at_least,
    check_vector_sequences,
    check_vectors,
    lengths_within,
)
from linattn_models.decoding.generate import GenerationMixin, TokenModel
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import Draws
from linattn_models.heads import Head
from linattn_models.heads.base import check_dtype, check_sequences, check_step_shape
from linattn_models.layers.config import TransformerConfig
from linattn_models.state import (
    NOTHING,
    START,
    DecodingState,
    FixedState,
    check_end,
    check_parameters,
    known_parameters,
    remember,
    room_for,
    zero_states,
)
from linattn_models.weights.fingerprint import refuse_others

# The most parameters that one call of several steps returns. With more of them, the time around a
# call, which several steps save, hardly counts.
_MOST_PARAMETERS = 1 << 15


class Compiled:
    """What decoders of tokens and of vectors share.

    Attributes:
        weights: the name of the dtype of the packed matrices.
        native: the decoder with the packed weights; see `NativeDecoder`.
    """

    def __init__(
        self,
        config: TransformerConfig,
        weights: str,
        native: NativeDecoder,
        description: DecoderDescription,
    ) -> None:
        self.weights = weights
        self.native = native
        self._config = config
        self._device = description.device
        self._layers = len(description.layers)
        self._row_shapes = [shape[1:] for shape in description.state_shapes(1)]

    @property
    def config(self) -> TransformerConfig:
        return self._config

    @property
    def device(self) -> torch.device:
        return self._device

    def __repr__(self) -> str:
        packed = f"{self.weights} weights, {self.native.nbytes:,} bytes"
        return f"{type(self).__name__}({packed}, {self.native.instruction_set})"

    def __reduce__(self) -> NoReturn:
        wanted, advice = "no copying or pickling", "save the model and call load_decoder(folder)"
        raise TypeError(expected(f"a {type(self).__name__}", wanted, "one of them", advice))

    def _check_state(self, state: DecodingState, batch: int) -> None:
        """Refuses a state of another model or batch, or memory that cannot be stepped."""
        shapes = self._state_shapes(batch)
        own = [[tuple(x.shape) for x in layer] for layer in state.layers]
        if own != [shapes] * self._layers:
            wanted, advice = f"{self._layers} layers of {shapes}", "it fits another model or batch"
            got = f"{len(own)} layers, such as a {type(state.layers[0]).__name__} of {own[0]}"
            raise ValueError(expected("state", wanted, got, advice))
        self.native.check(layers_of(state))

    def _zeros(self, batch: int) -> tuple[FixedState, ...]:
        return zero_states(self._layers, self._state_shapes(batch), self._device)

    def _state_shapes(self, batch: int) -> list[tuple[int, ...]]:
        return [(batch, *shape) for shape in self._row_shapes]


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
        check_end(length, max_length)
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
        self._check_state(state, x.shape[0])
        y, _ = self.native.step(x.detach(), state.position, layers_of(state), None)
        return y, advance(state, None)

    def _check_place(self, x: Tensor) -> None:
        if x.dtype != torch.float32 or x.device != self.device:
            got = f"{x.dtype} on {x.device}"
            raise TypeError(expected("x", f"float32 on {self.device}", got, "convert it by .to()"))


class CompiledDecoder(Compiled, GenerationMixin):
    """The decoding interface of an `AutoregressiveTransformer`, with compiled steps.

    Its states are those of the model, so model and decoder can continue each other's states. Later
    changes of the model's weights do not reach the decoder. Its results have no gradients.

    Attributes:
        head, max_length: those of the model; so is `tokenizer`, until it is set.
    """

    def __init__(
        self,
        model: TokenModel,
        weights: str,
        native: NativeDecoder,
        description: DecoderDescription,
        *,
        draws_inside: bool,
    ) -> None:
        super().__init__(model.config, weights, native, description)
        positions = cast(TokenCoding, description.tokens).positions
        self.head: Head = model.head
        self.max_length: int | None = model.max_length
        self._tokenizer = model.tokenizer
        self._fingerprint: str | None = None
        self._longest = None if positions is None else len(positions)
        self._has_start = model.has_start
        self._draws_inside = draws_inside

    def fingerprint(self) -> str | None:
        """That of the model from which `compile_decoder` packed the weights."""
        return self._fingerprint

    def set_fingerprint(self, fingerprint: str | None) -> None:
        """Sets the fingerprint of the model."""
        self._fingerprint = fingerprint

    @property
    def has_start(self) -> bool:
        return self._has_start

    @property
    def longest(self) -> int | None:
        """The most tokens of a sequence: the rows of the packed table of positions.

        None for a model without one.
        """
        return self._longest

    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.prefill`."""
        room = room_for(max_length, self._longest)
        most = self.most_tokens(room) if state is None else None
        check_sequences(self.head, tokens, 0, most)
        self._check_device(tokens)
        if lengths is not None:
            lengths_within("lengths", lengths, *tokens.shape[:2])
            lengths = lengths.to(self.device, torch.int64)
        if state is None:
            return self._begin(tokens, lengths, room)
        check_parameters(state, self.head.num_parameters)
        refuse_others(state.fingerprint, self._fingerprint)
        state = state.clone()
        self._check_state(state, tokens.shape[0])
        return self._continue(tokens, lengths, state, room)

    def _begin(
        self, tokens: Tensor, lengths: Tensor | None, room: int | None
    ) -> tuple[Tensor, DecodingState]:
        """`prefill` from the start."""
        recent = remember(None, tokens, lengths, NOTHING)
        lengths = None if lengths is None else lengths + self.has_start
        layers = self._zeros(tokens.shape[0])
        inputs = tokens.shape[1] + self.has_start
        if inputs:
            parameters = self.native.prefill(tokens, lengths, layers)
        else:
            parameters = torch.zeros(len(tokens), self.head.num_parameters, device=self.device)
        if lengths is not None and not self.has_start:
            parameters = parameters.masked_fill((lengths == 0).unsqueeze(1), 0.0)
        cursor = START.after(inputs, lengths)
        return parameters, DecodingState(
            layers, cursor, room, parameters, self._fingerprint, recent
        )

    def _continue(
        self, tokens: Tensor, lengths: Tensor | None, state: DecodingState, room: int | None
    ) -> tuple[Tensor, DecodingState]:
        """`prefill` from a state, which is updated in place."""
        cursor = state.cursor.after(tokens.shape[1], lengths)
        check_end(cursor.furthest, room)
        state, recent = state.with_room(room), remember(state.recent, tokens, lengths)
        before = known_parameters(state, tokens.shape[1], lengths)
        if tokens.shape[1] == 0:
            return cast(Tensor, before), state
        parameters = self._read_tokens(tokens, lengths, state)
        if before is not None and lengths is not None:
            parameters = torch.where((lengths > 0).unsqueeze(1), parameters, before)
        return parameters, replace(state, cursor=cursor, parameters=parameters, recent=recent)

    def _read_tokens(self, tokens: Tensor, lengths: Tensor | None, state: DecodingState) -> Tensor:
        """The parameters (B, P) after more tokens, of which each row has one or more, or none."""
        layers, cursor = layers_of(state), state.cursor
        if self._longest is None or cursor.furthest + tokens.shape[1] <= self._longest:
            return self.native.read(tokens, lengths, cursor.position, layers)
        # Padding would need positions that do not exist, so each row is read alone.
        parameters = torch.zeros(len(tokens), self.head.num_parameters, device=self.device)
        positions = cursor.rows(len(tokens)).tolist()
        for row, count in enumerate(cast(Tensor, lengths).tolist()):
            if count:
                own = tuple(type(layer)(*(x[row : row + 1] for x in layer)) for layer in layers)
                new = tokens[row : row + 1, :count]
                parameters[row] = self.native.read(new, None, positions[row], own)[0]
        return parameters

    def hold(self, state: DecodingState, owner: object) -> DecodingState:
        """The state in memory that the decoder reserves for `owner`, where that is faster.

        A step of it may overwrite the parameters that the step before returned.
        """
        layers = self.native.reserve(state.batch, owner)
        if layers is None:
            return state
        for own, other in zip(layers, layers_of(state), strict=True):
            for x, y in zip(own, other, strict=True):
                x.copy_(y)
        return replace(state, layers=cast(tuple[FixedState, ...], layers))

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.step`, but always updates the state in place."""
        self._check_step(token, state)
        return self._step(token, state)

    def steps_and_draws(
        self, token: Tensor, state: DecodingState, draws: Draws, count: int
    ) -> tuple[Tensor, Tensor, DecodingState]:
        if not self.draws_inside(draws):
            parameters, state = self._step(token, state)
            drawn = draws.draw(self.head, parameters)
            return parameters.unsqueeze(0), drawn.unsqueeze(0), state
        layers, draw = layers_of(state), draws.numbers(count)
        if count > 1:
            parameters, tokens = self.native.steps(token, state.position, layers, draw, count)
            return parameters, tokens, advance(state, parameters[-1], count)
        parameters, drawn = cast(
            tuple[Tensor, Tensor], self.native.step(token, state.position, layers, draw)
        )
        return parameters.unsqueeze(0), drawn.unsqueeze(0), advance(state, parameters)

    def draws_inside(self, draws: Draws) -> bool:
        """Whether a native step can draw so; if not, torch draws from the step's parameters."""
        filters = self.native.has_filters or not draws.has_filters
        return self._draws_inside and filters and not draws.reads_tokens

    def count_steps(self, state: DecodingState, draws: Draws, most: int) -> int:
        if not state.batch or not self.draws_inside(draws):
            return 1
        few = _MOST_PARAMETERS // (state.batch * self.head.num_parameters)
        ends = [end for end in (self._longest, state.max_length) if end is not None]
        rooms = (end - state.cursor.furthest for end in ends)
        return max(1, min(most, self.native.most_steps, few, *rooms))

    def choose_source(self, method: str, decoder: Any, prompt: Prompt) -> CompiledDecoder:
        """The decoder itself; refuses other methods and decoders."""
        if method not in ("auto", "stateful") or decoder not in ("auto", self):
            got = f"method={method!r} with decoder={decoder!r}"
            advice = "a compiled decoder draws by its own steps, so call the model's generate"
            raise ValueError(expected("generate", "a compiled decoder's 'auto'", got, advice))
        return self

    def check_decodes(self, model: TokenModel) -> None:
        """Refuses a model whose settings differ from those of the model that was compiled."""
        for name in ("config", "head", "max_length", "device"):
            own, other = getattr(self, name), getattr(model, name)
            if own != other:
                advice = "compile this model, or call the decoder's own generate"
                wanted = f"one compiled from a model with {name} {other}"
                raise ValueError(expected("decoder", wanted, own, advice))

    def _step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        parameters, _ = self.native.step(token, state.position, layers_of(state), None)
        return parameters, advance(state, parameters)

    def _check_device(self, tokens: Tensor) -> None:
        if tokens.device != self.device:
            raise ValueError(expected("tokens", f"some on {self.device}", tokens.device))

    def _check_step(self, token: Tensor, state: DecodingState) -> None:
        """Checks a token of each row, and the state."""
        check_step_shape(self.head, token)
        check_dtype("tokens", token)
        self._check_device(token)
        check_parameters(state, self.head.num_parameters)
        refuse_others(state.fingerprint, self._fingerprint)
        check_end(state.cursor.furthest + 1, self._longest)
        state.check_step(token.shape[0])
        self._check_state(state, token.shape[0])


def advance(state: DecodingState, parameters: Tensor | None, count: int = 1) -> DecodingState:
    """The state `count` positions later, with the same memory."""
    cursor = state.cursor.after(count, None)
    return DecodingState(state.layers, cursor, state.max_length, parameters, state.fingerprint)


def layers_of(state: DecodingState) -> tuple[FixedState, ...]:
    """The layers of a state that was checked."""
    return cast(tuple[FixedState, ...], state.layers)
