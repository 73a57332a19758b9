"""Compiled decoders of tokens: packed weights, with the interface of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import NativeDecoder
from linattn_core.errors import expected
from linattn_models.basics.validation import (
    lengths_within,
)
from linattn_models.decoding.compiled_transformer import Compiled, advance, layers_of
from linattn_models.decoding.generate import GenerationMixin, TokenModel
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.rows import Stepper
from linattn_models.decoding.sampling import Draws, SamplingParams, Settings
from linattn_models.heads import Head
from linattn_models.heads.base import check_batch, check_sequences, check_step_shape
from linattn_models.heads.settings import PerRow
from linattn_models.state import (
    START,
    Cursor,
    DecodingState,
    FixedState,
    check_end,
    check_fits,
    check_parameters,
    check_positions,
    known_parameters,
    less_one,
    room_for,
)
from linattn_models.weights.fingerprint import refuse_others

# The most parameters that one call of several steps returns. With more of them, the time around a
# call, which several steps save, hardly counts.
_MOST_PARAMETERS = 1 << 15


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
        longest: int | None,
        *,
        draws_inside: bool,
    ) -> None:
        super().__init__(model.config, weights, native, model.device)
        self.head: Head = model.head
        self.max_length: int | None = model.max_length
        self._tokenizer = model.tokenizer
        self._fingerprint: str | None = None
        self._longest = longest
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
        """Whether a start vector takes position 0."""
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
        """As `AutoregressiveTransformer.prefill`; on a GPU, a state is continued in steps."""
        room = room_for(max_length, self._longest)
        check_batch(self.head, tokens)
        self._check_device(tokens)
        if state is not None:
            check_parameters(state, self.head.num_parameters)
            refuse_others(state.fingerprint, self._fingerprint)
            check_fits(state, DecodingState(self._zeros(1), START))
            if state.batch != tokens.shape[0]:
                wanted, got = f"sequences for the prompts' {tokens.shape[0]} rows", state.batch
                raise ValueError(expected("state", wanted, got))
            return self._continue(tokens, lengths, state.clone(), room)
        batch, length = tokens.shape[:2]
        check_sequences(self.head, tokens, 0, less_one(room) if self.has_start else room)
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            lengths = lengths.to(self.device, torch.int64)
        lengths = None if lengths is None else lengths + self.has_start
        layers = self._zeros(batch)
        inputs = length + self.has_start
        if inputs:
            parameters = self.native.prefill(tokens, lengths, layers)
        else:
            parameters = torch.zeros(batch, self.head.num_parameters, device=self.device)
        if lengths is not None and not self.has_start:
            parameters = parameters.masked_fill((lengths == 0).unsqueeze(1), 0.0)
        cursor = START.after(inputs, lengths)
        return parameters, DecodingState(layers, cursor, room, parameters, self._fingerprint)

    def _continue(
        self, tokens: Tensor, lengths: Tensor | None, state: DecodingState, room: int | None
    ) -> tuple[Tensor, DecodingState]:
        """`prefill` from a state, which is updated in place."""
        length = tokens.shape[1]
        # Native code wants room for the padding, too, which rows of different lengths may lack.
        fits = self._longest is None or state.cursor.furthest + length <= self._longest
        if not (self.native.continues_prompts and fits):
            return step_through(self, tokens, lengths, state, room)
        lengths, before = check_continuation(self.head, tokens, lengths, state, room)
        state = state.with_room(room)
        if length == 0:
            return cast(Tensor, before), state
        layers, position = layers_of(state), state.cursor.position
        self.native.check(layers, state.batch)
        parameters = self.native.read(tokens, lengths, position, layers)
        if before is not None and lengths is not None:
            parameters = torch.where((lengths > 0).unsqueeze(1), parameters, before)
        cursor = state.cursor.after(length, lengths)
        return parameters, replace(state, cursor=cursor, parameters=parameters)

    def hold(self, state: DecodingState, owner: object) -> DecodingState:
        """The state in memory that the decoder reserves for `owner`, where that is faster.

        A step of it may overwrite the parameters that the step before returned.
        """
        layers = self.native.reserve(state.batch, owner)
        if layers is None:
            self.native.check(layers_of(state), state.batch)
            return state
        for own, other in zip(layers, layers_of(state), strict=True):
            for x, y in zip(own, other, strict=True):
                x.copy_(y)
        return replace(state, layers=cast(tuple[FixedState, ...], layers))

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.step`, but always updates the state in place."""
        self._check_step(token, state)
        return self._step(token, state)

    def step_and_sample(
        self,
        token: Tensor,
        state: DecodingState,
        *,
        temperature: PerRow = 1.0,
        top_k: int | Sequence[int | None] | Tensor | None = None,
        top_p: PerRow | None = None,
        min_p: PerRow | None = None,
        seeds: int | Sequence[int] | Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """A step and the draw that follows it, in one call.

        Args:
            token, state: as for `step`.
            temperature, top_k, top_p, min_p, seeds, generator: as for `generate`, which draws the
                same tokens at the same positions.

        Returns:
            (B, P) parameters, the next tokens (B,) or (B, 3), and the next state.

        Raises:
            ValueError, TypeError: as for `step`, or wrong arguments of the draw.
        """
        params = SamplingParams(temperature, top_k, top_p, min_p, seeds)
        settings = Settings(params, self.head, self.device, generator, names=("seeds", "n"))
        self._check_step(token, state)
        # The number of the next token; a start vector has a position, but no number.
        position = state.cursor.rows(len(token), self.device) + 1 - int(self.has_start)
        draws = settings.draws(token, torch.ones_like(position), position, ahead=1)
        parameters, drawn, state = self.steps_and_draws(token, state, draws, 1)
        return parameters[0], drawn[0], state

    def steps_and_draws(
        self, token: Tensor, state: DecodingState, draws: Draws, count: int
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """As `Stepper.steps_and_draws`, in one native call if that can draw so."""
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
        """How many of `most` steps one call should make: 1 or more, as far as there is room."""
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
        self._check_device(token)
        check_parameters(state, self.head.num_parameters)
        refuse_others(state.fingerprint, self._fingerprint)
        check_positions(state.cursor, self._longest)
        state.check_step(token.shape[0])
        self.native.check(layers_of(state), token.shape[0])


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
    decoder: Stepper,
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
