"""Compiled decoders of tokens: packed weights, with the interface of the model."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.decoder_spec import NativeDecoder
from linattn_core.errors import expected
from linattn_models.decoding.compiled_transformer import Compiled, advance
from linattn_models.decoding.generation import GenerationMixin
from linattn_models.decoding.loop import Start
from linattn_models.decoding.predictors import (
    Prefills,
    TokenModel,
    check_continuation,
    keep_within_room,
    layers_of,
    prefill_prompt,
    step_through,
)
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import Draws, SamplingParams, Settings
from linattn_models.fingerprint import refuse_others
from linattn_models.heads import Head
from linattn_models.heads.base import check_batch, check_sequences, check_step_shape
from linattn_models.heads.settings import PerRow
from linattn_models.state import (
    START,
    DecodingState,
    FixedState,
    check_fits,
    check_parameters,
    check_positions,
    less_one,
    room_for,
)
from linattn_models.validation import (
    lengths_within,
)

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
        owner: object | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.prefill`; on a GPU, a state is continued in steps.

        Args:
            owner: an object for which the decoder reserves the states that it steps fastest, if it
                has such states. They are valid while it lives, and a step of them may overwrite
                the parameters that the step before returned.
        """
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
        layers = self.empty_states(batch, owner)
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
        parameters = self.native.read(tokens, lengths, position, layers)
        if before is not None and lengths is not None:
            parameters = torch.where((lengths > 0).unsqueeze(1), parameters, before)
        cursor = state.cursor.after(length, lengths)
        return parameters, replace(state, cursor=cursor, parameters=parameters)

    def empty_states(self, batch: int, owner: object | None = None) -> tuple[FixedState, ...]:
        """Zero states of `batch` rows, reserved for an owner where that makes steps faster."""
        states = None if owner is None else self.native.reserve(batch, owner)
        return cast(tuple[FixedState, ...], states) or self._zeros(batch)

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
        return self.step_and_draw(token, state, draws)

    def step_and_draw(
        self, token: Tensor, state: DecodingState, draws: Draws
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """As `step_and_sample`, with arguments that are checked already."""
        if not self.draws_inside(draws):
            parameters, state = self._step(token, state)
            return parameters, draws.draw(self.head, parameters), state
        layers, draw = layers_of(state), draws.numbers()
        parameters, drawn = self.native.step(token, state.position, layers, draw)
        return parameters, cast(Tensor, drawn), advance(state, parameters)

    def steps_and_draws(
        self, token: Tensor, state: DecodingState, draws: Draws, count: int
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """As `count` calls of `step_and_draw`, each with the tokens that the one before drew.

        Args:
            token, state, draws: of the first step, checked already; the draws are made inside.
            count: at least 1, and at most what `steps_at_once` allows.

        Returns:
            The parameters (count, B, P), the tokens (count, B) or (count, B, 3), and the state
            after the last step.
        """
        if count == 1:
            parameters, drawn, state = self.step_and_draw(token, state, draws)
            return parameters.unsqueeze(0), drawn.unsqueeze(0), state
        layers, draw = layers_of(state), draws.numbers(count)
        parameters, drawn = self.native.steps(token, state.position, layers, draw, count)
        return parameters, drawn, advance(state, parameters[-1], count)

    def draws_inside(self, draws: Draws) -> bool:
        """Whether a native step can draw so; if not, torch draws from the step's parameters."""
        filters = self.native.has_filters or not draws.has_filters
        return self._draws_inside and filters and not draws.reads_tokens

    def steps_at_once(self, state: DecodingState, most: int) -> int:
        """How many of `most` steps one call should make: 1 or more, as far as there is room."""
        if not self._draws_inside or not state.batch:
            return 1
        few = _MOST_PARAMETERS // (state.batch * self.head.num_parameters)
        ends = [end for end in (self._longest, state.max_length) if end is not None]
        rooms = (end - state.cursor.furthest for end in ends)
        return max(1, min(most, self.native.most_steps, few, *rooms))

    def choose_predictor(self, method: str, decoder: Any, prompt: Prompt) -> Start:
        """Starts a predictor that steps with this decoder; refuses other methods and decoders."""
        if method not in ("auto", "stateful") or decoder not in ("auto", self):
            got = f"method={method!r} with decoder={decoder!r}"
            advice = "a compiled decoder draws by its own steps, so call the model's generate"
            raise ValueError(expected("generate", "a compiled decoder's 'auto'", got, advice))
        return partial(FusedPredictor, self, prompt)

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
        """Checks all but the layers of the state, which the native decoder checks."""
        check_step_shape(self.head, token)
        self._check_device(token)
        check_parameters(state, self.head.num_parameters)
        refuse_others(state.fingerprint, self._fingerprint)
        check_positions(state.cursor, self._longest)
        state.check_step(token.shape[0])


class FusedPredictor:
    """Predicts by a compiled decoder: one call makes one or more steps with their draws.

    Args:
        decoder: the decoder.
        prompt: the prompt.
        reader: reads a prompt that continues a state, which the decoder would read step by step.
    """

    state: DecodingState

    def __init__(
        self, decoder: CompiledDecoder, prompt: Prompt, reader: Prefills | None = None
    ) -> None:
        self.decoder = decoder
        tokens, lengths = prompt.known
        if prompt.state is None:
            self.parameters, self.state = decoder.prefill(
                tokens, lengths, max_length=prompt.positions, owner=self
            )
        else:
            self.parameters, state = prefill_prompt(reader or decoder, prompt)
            self.state = self._reserve(state)
        self.last: Tensor | None = None  # the token that the next draw steps with
        self._ahead: deque[tuple[Tensor, Tensor]] = deque()  # drawn already, in order

    def draw(self, draws: Draws, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """From the parameters after the last token appended."""
        if self.last is None:
            return self.parameters, draws.draw(self.decoder.head, self.parameters)
        if self._ahead:
            return self._ahead.popleft()
        state = keep_within_room(self.state)
        count = 1 if ahead == 1 else self.decoder.steps_at_once(state, ahead)
        if count == 1 or not self.decoder.draws_inside(draws):
            parameters, token, self.state = self.decoder.step_and_draw(self.last, state, draws)
            return parameters, token
        parameters, tokens, self.state = self.decoder.steps_and_draws(
            self.last, state, draws, count
        )
        self._ahead.extend(zip(parameters.unbind(), tokens.unbind(), strict=True))
        return self._ahead.popleft()

    def append(self, token: Tensor) -> None:
        """Stores the token."""
        self.last = token

    def select_rows(self, rows: Tensor) -> None:
        """Forks and drops states."""
        self.parameters, self.state = self.parameters[rows], self.state.index_select(rows)
        layers = self.decoder.native.reserve(self.state.batch, self)
        if layers is not None:  # the rows of another slot, or others of the same
            self.state = _copy_into(cast(tuple[FixedState, ...], layers), self.state)

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """One step."""
        return self.decoder.step(token, state)[1]

    def _reserve(self, state: DecodingState) -> DecodingState:
        """A copy of the state in the memory where the decoder steps it fastest."""
        return _copy_into(self.decoder.empty_states(state.batch, self), state)


def _copy_into(layers: tuple[FixedState, ...], state: DecodingState) -> DecodingState:
    """The state in the memory of other layers."""
    for own, other in zip(layers, layers_of(state), strict=True):
        for x, y in zip(own, other, strict=True):
            x.copy_(y)
    return replace(state, layers=layers)
