"""Decoding with packed weights: one or more steps of a model in one call, or one CUDA graph."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import cast

import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.decoder_spec import Draw, NativeDecoder
from linattn_core.errors import expected
from linattn_models.decoding.beams import Searching
from linattn_models.decoding.drawing import Drawing
from linattn_models.decoding.filters import Filters
from linattn_models.decoding.model import TokenModel
from linattn_models.decoding.predictors import Begin, prefilled, within_room
from linattn_models.decoding.prompts import Prompt
from linattn_models.decoding.sampling import Sampling
from linattn_models.decoding.stepping import cut, step_through
from linattn_models.decoding.vectors import Compiled, advanced, layers_of
from linattn_models.heads.base import Drawn, check_sequences, check_step_shape, fill
from linattn_models.state import (
    START,
    DecodingState,
    check_end,
    check_fits,
    check_parameters,
    check_positions,
    less_one,
    room_for,
)
from linattn_models.validation import lengths_within

# The most parameters that one call of several steps returns. With more of them, the time around a
# call, which several steps save, hardly counts.
_MOST_PARAMETERS = 1 << 15


class CompiledDecoder(Compiled, Drawing, Searching):
    """The decoding interface of an `AutoregressiveTransformer`, with compiled steps.

    Its states are those of the model, so model and decoder can continue each other's states. Later
    changes of the model's weights do not reach the decoder. Its results have no gradients.

    Attributes:
        head, max_length: those of the model.
        longest: the most tokens of a sequence: the rows of the packed table of positions; None for
            a model without positions.
    """

    def __init__(
        self,
        model: TokenModel,
        weights: str,
        native: NativeDecoder,
        positions: Tensor,
        *,
        draws_inside: bool,
    ) -> None:
        super().__init__(model.config, weights, native, model.device)
        self.head = model.head
        self.max_length = model.max_length
        self._rows = len(positions)
        # Without positions the table is zeros, so that its row 0 fits every position.
        self._anywhere = model.longest is None and not positions.any()
        self.longest: int | None = None if self._anywhere else self._rows
        self._drawn = cast(Drawn, model.head) if draws_inside else None

    def prefill(
        self,
        tokens: Tensor,
        lengths: Tensor | None = None,
        state: DecodingState | None = None,
        *,
        max_length: int | None = None,
        owner: object | None = None,
    ) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.prefill`; tokens that continue a state are read in steps.

        Args:
            owner: an object for which the decoder reserves the states that it steps fastest, if it
                has such states. They are valid while it lives, and a step of them may overwrite
                the parameters that the step before returned.
        """
        room = room_for(max_length, self.longest)
        self._check_device(tokens)
        if state is not None:
            check_parameters(state, self.head.num_parameters)
            check_fits(state, DecodingState(self._zeros(1), START))
            if state.batch != tokens.shape[0]:
                wanted, got = f"sequences for the prompts' {tokens.shape[0]} rows", state.batch
                raise ValueError(expected("state", wanted, got))
            return step_through(self, tokens, lengths, state.clone(), room)
        check_sequences(self.head, tokens, 0, less_one(room))
        batch, length = tokens.shape[:2]
        if length >= self._rows:
            first = self._rows - 1
            own, more = (None, None) if lengths is None else cut(lengths, first)
            _, state = self.prefill(tokens[:, :first], own, max_length=room, owner=owner)
            return step_through(self, tokens[:, first:], more, state, room)
        if lengths is not None:
            lengths_within("lengths", lengths, batch, length)
            lengths = lengths.to(self.device, torch.int64) + 1  # the start vector counts
        states = self.empty_states(batch, owner)
        parameters = self.native.prefill(tokens, lengths, states)
        return parameters, DecodingState(states, START.after(length + 1, lengths), room, parameters)

    def empty_states(
        self, batch: int, owner: object | None = None
    ) -> tuple[LinearAttentionState, ...]:
        """Zero states of `batch` rows, reserved for an owner where that makes steps faster."""
        states = None if owner is None else self.native.reserve(batch, owner)
        return states or self._zeros(batch)

    def step(self, token: Tensor, state: DecodingState) -> tuple[Tensor, DecodingState]:
        """As `AutoregressiveTransformer.step`, but always updates the state in place."""
        self._check_step(token, state)
        parameters, _ = self.native.step(token, self._place(state), layers_of(state), None)
        return parameters, advanced(state, parameters)

    def step_and_sample(
        self,
        token: Tensor,
        state: DecodingState,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """A step and the draw that follows it, in one call.

        Args:
            token, state: as for `step`.
            temperature, generator: as for the head's `sample`.
            top_k, top_p, min_p: as for `generate`.

        Returns:
            (B, P) parameters, the next tokens (B,) or (B, 3), and the next state.

        Raises:
            ValueError, TypeError: as for `step`, or wrong arguments of the draw.
        """
        sampling = Sampling(temperature, generator, Filters(top_k, top_p, min_p))
        sampling.check(self)
        return self.step_and_draw(token, state, sampling)

    def step_and_draw(
        self, token: Tensor, state: DecodingState, sampling: Sampling
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """As `step_and_sample`, with settings that are checked already."""
        self._check_step(token, state)
        if self._drawn is None:
            parameters, state = self.step(token, state)
            return parameters, sampling.draw(self.head, parameters), state
        place, layers = self._place(state), layers_of(state)
        draw = self._draw(self._drawn, layers, sampling)
        parameters, drawn = self.native.step(token, place, layers, draw, sampling.filters or None)
        return parameters, cast(Tensor, drawn), advanced(state, parameters)

    def steps_and_draws(
        self, token: Tensor, state: DecodingState, sampling: Sampling, count: int
    ) -> tuple[Tensor, Tensor, DecodingState]:
        """As `count` calls of `step_and_draw`, each with the tokens that the one before drew.

        Args:
            token, state, sampling: of the first step, as for `step_and_draw`.
            count: at least 1; at most the `most_steps` of the backend, and 1 for a head that draws
                by itself.

        Returns:
            The parameters (count, B, P), the tokens (count, B) or (count, B, 3), and the state
            after the last step.

        Raises:
            ValueError, TypeError: as for `step`; a count out of range; no position for all steps.
        """
        if count == 1:
            parameters, drawn, state = self.step_and_draw(token, state, sampling)
            return parameters.unsqueeze(0), drawn.unsqueeze(0), state
        most = 1 if self._drawn is None else self.native.most_steps
        if not 1 <= count <= most:
            raise ValueError(expected("count", f"at least 1 and at most {most}", count))
        self._check_step(token, state)
        check_end(state.cursor.after(count, None), self._room(state))
        place, layers = self._place(state), layers_of(state)
        draw = _noise_of_steps(cast(Drawn, self._drawn), count, layers[0].z, sampling)
        filters = sampling.filters or None
        parameters, drawn = self.native.steps(token, place, layers, draw, count, filters)
        return parameters, drawn, advanced(state, parameters[-1], count)

    def steps_at_once(self, state: DecodingState, most: int) -> int:
        """How many of `most` steps one call should make: 1 or more, as far as there is room."""
        if self._drawn is None or not state.batch:
            return 1
        few = _MOST_PARAMETERS // (state.batch * self.head.num_parameters)
        left = self._room(state) - state.cursor.furthest
        return max(1, min(most, self.native.most_steps, left, few))

    def _room(self, state: DecodingState) -> int:
        """The end of the positions that steps from a state may take."""
        rows = self._rows + state.cursor.furthest if self._anywhere else self._rows
        return rows if state.max_length is None else min(rows, state.max_length)

    def predictor(self, method: str, decoder: str | CompiledDecoder, prompt: Prompt) -> Begin:
        """Makes the predictor that steps with this decoder; see `Predicting`."""
        if method not in ("auto", "stateful") or decoder not in ("auto", self):
            got = f"method={method!r} with decoder={decoder!r}"
            advice = "a compiled decoder draws by its own steps, so call the model's generate"
            raise ValueError(expected("generate", "a compiled decoder's 'auto'", got, advice))
        return partial(FusedPredictor, self)

    def reads(self, tokens: Tensor) -> bool:
        """Whether prompts (B, N) are read at once and not step by step."""
        return tokens.shape[1] < self._rows

    def check_decodes(self, model: TokenModel) -> None:
        """Refuses a model whose settings differ from those of the model that was compiled.

        Raises:
            ValueError: naming the first setting that differs.
        """
        for name in ("config", "head", "max_length", "device"):
            own, other = getattr(self, name), getattr(model, name)
            if own != other:
                advice = "compile this model, or call the decoder's own generate"
                wanted = f"one compiled from a model with {name} {other}"
                raise ValueError(expected("decoder", wanted, own, advice))

    def _place(self, state: DecodingState) -> int | Tensor:
        """The row of the table of positions that a step reads."""
        return 0 if self._anywhere else state.position

    def _draw(
        self, head: Drawn, layers: tuple[LinearAttentionState, ...], sampling: Sampling
    ) -> Draw:
        """New random numbers for the head, in the decoder's own tensors if it has them."""
        draw = self.native.noise(layers, sampling.temperature)
        if draw is None:
            like, temperature = layers[0].z, sampling.temperature
            return head.noise((len(like),), temperature, sampling.generator, like=like)
        fill(draw, sampling.generator)
        return draw

    def _check_device(self, tokens: Tensor) -> None:
        if tokens.device != self.device:
            raise ValueError(expected("tokens", f"some on {self.device}", tokens.device))

    def _check_step(self, token: Tensor, state: DecodingState) -> None:
        self._check_device(token)
        check_step_shape(self.head, token)
        check_parameters(state, self.head.num_parameters)
        check_positions(state.cursor, self.longest)
        state.check_step(token.shape[0])


class FusedPredictor:
    """Predicts by a compiled decoder: one call makes one or more steps with their draws."""

    state: DecodingState

    def __init__(
        self, decoder: CompiledDecoder, prompt: Prompt, reader: TokenModel | None = None
    ) -> None:
        self.decoder = decoder
        tokens, lengths = prompt.known
        if prompt.state is None and (reader is None or decoder.reads(tokens)):
            self.parameters, self.state = decoder.prefill(
                tokens, lengths, max_length=prompt.positions, owner=self
            )
        else:
            self.parameters, state = prefilled(cast(TokenModel, reader or decoder), prompt)
            self.state = self._reserved(state)
        self.taken: Tensor | None = None
        self._ahead: deque[tuple[Tensor, Tensor]] = deque()  # drawn already, in order

    def draw(self, sampling: Sampling, ahead: int = 1) -> tuple[Tensor, Tensor]:
        """From the parameters after the last token taken."""
        if self.taken is None:
            return self.parameters, sampling.draw(self.decoder.head, self.parameters)
        if self._ahead:
            return self._ahead.popleft()
        state = within_room(self.state)
        count = 1 if ahead == 1 else self.decoder.steps_at_once(state, ahead)
        if count == 1:
            parameters, token, self.state = self.decoder.step_and_draw(self.taken, state, sampling)
            return parameters, token
        parameters, tokens, self.state = self.decoder.steps_and_draws(
            self.taken, state, sampling, count
        )
        self._ahead.extend(zip(parameters.unbind(), tokens.unbind(), strict=True))
        return self._ahead.popleft()

    def take(self, token: Tensor) -> None:
        """Stores the token, which the next draw steps with."""
        self.taken = token

    def keep(self, rows: Tensor) -> None:
        """Forks and drops states."""
        self.parameters, self.state = self.parameters[rows], self.state.index_select(rows)

    def read(self, token: Tensor, state: DecodingState) -> DecodingState:
        """One step."""
        return self.decoder.step(token, state)[1]

    def _reserved(self, state: DecodingState) -> DecodingState:
        """A copy of the state in the memory where the decoder steps it fastest."""
        layers = self.decoder.empty_states(state.batch, self)
        for own, other in zip(layers, layers_of(state), strict=True):
            own.s.copy_(other.s)
            own.z.copy_(other.z)
        return replace(state, layers=layers)


def _noise_of_steps(head: Drawn, count: int, like: Tensor, sampling: Sampling) -> Draw:
    """The random numbers of `count` steps, (count, B, K) and (count, B, C).

    Drawn step by step: a generator would give other numbers to one tensor than to its parts.
    """
    noise = head.empty_noise((count, len(like)), sampling.temperature, like=like)
    if noise.waits is None:
        return noise
    uniforms = [None] * count if noise.uniform is None else noise.uniform.unbind()
    for waits, uniform in zip(noise.waits.unbind(), uniforms, strict=True):
        fill(Draw(noise.temperature, waits, uniform), sampling.generator)
    return noise
