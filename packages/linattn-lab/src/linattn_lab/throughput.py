"""How fast a model generates: sequences per second, seconds per sequence, bytes of state."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_lab.timing import clock, time_calls
from linattn_models.basics.validation import at_least
from linattn_models.decoding import (
    CompiledDecoder,
    Draws,
    SamplingParams,
    choose_decoder,
    choose_method,
    read_prompt,
    start_draws,
)
from linattn_models.heads.base import token_shape
from linattn_models.state import Cursor
from linattn_models.tokens.autoregressive import AutoregressiveTransformer

# A short step is repeated for so many seconds in total, but at most so many times.
_SECONDS_A_POSITION = 0.05
_MOST_REPEATS = 20


@dataclass(frozen=True)
class Throughput:
    """The measurement of `generation_throughput`.

    Attributes:
        samples_per_second: whole sequences per second, of the whole batch.
        seconds_per_sample: its inverse; with a batch of 1, the time that one sequence takes.
        seconds_per_step: (position, seconds) of each timed position, for the whole batch. Where a
            compiled decoder makes several steps in one call, a mean over positions.
        state_bytes_per_sample: bytes of the state of one sequence; 0 with method "rerun".
        compiled: whether a compiled decoder made the steps; if not, the model itself.
    """

    samples_per_second: float
    seconds_per_sample: float
    seconds_per_step: list[tuple[int, float]]
    state_bytes_per_sample: int
    compiled: bool

    @property
    def slowest(self) -> float:
        """Seconds of the slowest position that was timed."""
        return max(seconds for _, seconds in self.seconds_per_step)


def generation_throughput(
    model: AutoregressiveTransformer,
    *,
    batch: int,
    length: int | None = None,
    method: str = "auto",
    decoder: str | CompiledDecoder = "auto",
    steps: int | None = None,
) -> Throughput:
    """Times `generate` for `batch` sequences side by side, after a warm-up.

    `stream`, and `generate` with `stop_tokens` or `return_state`, make every step by a call of its
    own; with a compiled decoder and a small batch they take somewhat longer.

    Args:
        model: the model; its weights need not be trained.
        batch: the number of sequences.
        length: tokens of a sequence, the model's `max_length` by default.
        method, decoder: as for `generate`.
        steps: how many positions to time, spread over the sequence; the others are interpolated.
            None generates whole sequences and times every position.

    Raises:
        ValueError: wrong arguments.
        TypeError: a compiled decoder in place of the model.
    """
    if isinstance(model, CompiledDecoder):
        advice = "pass the model, and the decoder as decoder="
        wanted, got = "an AutoregressiveTransformer", "a CompiledDecoder"
        raise TypeError(expected("model", wanted, got, advice))
    batch = at_least("batch", batch, 1)
    method = choose_method(model, method)
    length = read_prompt(model, batch, length=length).length
    chosen = choose_decoder(model, method, decoder, length, length)  # packed once, not timed
    decoder = chosen or "eager"
    generator = torch.Generator(model.device).manual_seed(0)
    generation = _Generation(model, batch, length, method, decoder, generator)
    if steps is None:
        timed = generation.every_position()
    else:
        steps = at_least("steps", steps, 2)
        timed = generation.positions(np.linspace(0, length - 1, steps))
    positions, seconds = zip(*timed, strict=True)
    total = float(np.interp(np.arange(length), positions, seconds).sum())
    state = model.transformer.initial_state(1, max_length=length) if method == "stateful" else None
    return Throughput(
        samples_per_second=batch / total,
        seconds_per_sample=total / batch,
        seconds_per_step=timed,
        state_bytes_per_sample=0 if state is None else state.nbytes,
        compiled=isinstance(decoder, CompiledDecoder),
    )


@dataclass(frozen=True)
class _Generation:
    """A generation that is timed position by position."""

    model: AutoregressiveTransformer
    batch: int
    length: int
    method: str
    decoder: str | CompiledDecoder
    generator: torch.Generator

    def every_position(self) -> list[tuple[int, float]]:
        """Generates, reading the clock at every token.

        Where one call makes several steps, there is no clock between them, and each position gets
        an equal part of the time of the whole.
        """
        at_once = self.steps_of_a_call > 1
        for _ in self.tokens_in_turn(min(self.length, 3), at_once):
            pass  # warms up
        readings = clock(self.model.device)
        readings.read()
        for _ in self.tokens_in_turn(self.length, at_once):
            readings.read()
        seconds = readings.seconds()
        if at_once:
            seconds = [seconds[0] / self.length] * self.length
        return list(enumerate(seconds))

    def tokens_in_turn(self, length: int, at_once: bool) -> Iterable[Tensor]:
        """The tokens of each position as soon as they are drawn, or all at once."""
        generate = self.model.generate if at_once else self.model.stream
        drawn = generate(
            self.batch,
            length=length,
            method=self.method,
            decoder=self.decoder,
            generator=self.generator,
        )
        return [drawn] if isinstance(drawn, Tensor) else drawn

    @property
    def steps_of_a_call(self) -> int:
        """How many steps `generate` makes in one call."""
        if not isinstance(self.decoder, CompiledDecoder):
            return 1
        start = self.model.transformer.initial_state(self.batch, max_length=self.length)
        return self.decoder.count_steps(start, self.draws(), self.length)

    @torch.inference_mode()
    def positions(self, spread: npt.NDArray[np.float64]) -> list[tuple[int, float]]:
        """Times these positions, rounded to integers, each several times."""
        return [(x, self.seconds_at(x)) for x in sorted({int(x) for x in spread.round()})]

    def seconds_at(self, position: int) -> float:
        """The time of a step at `position`, from a zero state: its values do not change it."""
        device = self.model.device
        if isinstance(self.decoder, CompiledDecoder):
            run = self.compiled_steps(self.decoder, position)
            return _seconds(run, device) / self.steps_of_a_call
        return _seconds(self.step_at(position), device)

    def step_at(self, position: int) -> Callable[[], Tensor]:
        """A step of the model itself."""
        model, draw = self.model, partial(self.model.head.sample, generator=self.generator)
        if self.method == "rerun":
            tokens = self.tokens(self.batch, position)
            return lambda: draw(model.predict_next(tokens))
        token = self.tokens(self.batch)
        state = model.transformer.initial_state(self.batch, max_length=self.length)
        state = replace(state, cursor=Cursor(position, position))
        return lambda: draw(model.step(token, state)[0])

    def compiled_steps(self, decoder: CompiledDecoder, position: int) -> Callable[[], None]:
        """The steps of one call as in `generate`, from states that the decoder may have reserved.

        The last of them is at `position`; near the start, the first is at 0.
        """
        token = self.tokens(self.batch)
        start = decoder.prefill(token.unsqueeze(1)[:, :0], max_length=self.length)[1]
        start, draws = decoder.hold(start, self), self.draws()
        count = self.steps_of_a_call
        first = max(0, position + 1 - count)
        state = replace(start, cursor=Cursor(first, first))

        def steps() -> None:
            decoder.steps_and_draws(token, state, draws, count)

        steps()  # the first step on a GPU records the graph
        return steps

    def draws(self) -> Draws:
        """Those of the whole batch."""
        head, device = self.model.head, self.model.device
        return start_draws(SamplingParams(), self.batch, head, device, self.generator)

    def tokens(self, *shape: int) -> Tensor:
        """Random tokens of this shape."""
        head, where = self.model.head, self.model.device
        shape = (*shape, *token_shape(head))
        return torch.randint(head.levels, shape, generator=self.generator, device=where)


def _seconds(step: Callable[[], object], device: torch.device) -> float:
    """The median seconds of several runs after a warm-up; the warm-up itself, if it is long."""
    warm_up = time_calls(device, step)[0]
    if warm_up > 20 * _SECONDS_A_POSITION:
        return warm_up
    repeats = min(_MOST_REPEATS, math.ceil(_SECONDS_A_POSITION / warm_up))
    return float(np.median(time_calls(device, step, repeats)))
