"""The decoders that the cases compare, each as a method: whole images, and single steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

import linattn_models
from benchmarks.case import Method, Settings
from benchmarks.cases import peers
from benchmarks.cases.decoder_checks import check_compiled, check_steps
from benchmarks.cases.models import WEIGHT_BYTES, Task
from benchmarks.cases.peer_decoder import PeerDecoder
from linattn_lab.throughput import generation_throughput
from linattn_lab.timing import NotMeasured, stopwatch
from linattn_models import AutoregressiveTransformer, CompiledDecoder
from linattn_models.attention import Attention
from linattn_models.decoding import SamplingParams, start_draws
from linattn_models.state import Cursor

LINEAR, STATEFUL_SOFTMAX = "linear (eager)", "stateful softmax"
Work = dict[str, Any]  # a method's least operations and bytes


def compiled_name(weights: str) -> str:
    """The name of the method: a compiled decoder that stores its weights in this format."""
    return f"linear (compiled, {weights})"


def generate_eagerly(attention: str, task: Task) -> Method:
    """Generates whole images as an RNN: from sums for linear, from a cache for softmax.

    The model steps itself; its operators are of the fastest backend that is installed.
    """
    model = task.model(attention)
    work = _least_work(task, task.length) if attention == "linear" else {}
    return _generation(model, partial(check_steps, model), task, work, "eager")


def generate_compiled(
    weights: str, task: Task, attention: Attention | None = None, *, fuse: bool = False
) -> Method:
    """Generates whole sequences by a compiled decoder, whose packing of the weights is not timed.

    Args:
        fuse: as for `compile_decoder`.
    """
    model = task.model(attention)
    decoder = pack_decoder(model, weights, fuse=fuse)
    check = partial(check_compiled, model, decoder, task.batch)
    work = {} if task.language else _least_work(task, task.length, weights)
    return _generation(model, check, task, work, decoder)


def generate_by_peer(task: Task, settings: Settings) -> Method:
    """The peer's recurrent model with the same weights, embedding, head and sampling."""
    decoder = _peer(task, settings)
    run = partial(decoder.generate, task.batch, torch.Generator(task.device).manual_seed(0))
    check, measure = partial(check_steps, decoder), partial(stopwatch(task.device), run)
    return Method(check, measure=measure, units=task.batch, **_least_work(task, task.length))


def step_eagerly(attention: str | None, task: Task, position: int) -> Method:
    """One step and one draw at `position`; the time does not depend on the values in the state."""
    model = task.model(attention)
    work = _least_work(task) if attention == "linear" else {}
    return _step(model, model, _state_at(position, model, task), task, work)


def step_by_peer(task: Task, settings: Settings) -> Method:
    """As `step_eagerly`, by the peer's recurrent model."""
    decoder = _peer(task, settings)
    with torch.inference_mode():
        _, (_, memory) = decoder.prefill(torch.empty(task.batch, 0))
    return _step(decoder, decoder.model, (task.length // 2, memory), task, _least_work(task))


def step_compiled(weights: str, task: Task, attention: Attention | None = None) -> Method:
    """Steps and draws as `generate` makes them: several in one call, if the batch is small."""
    model = task.model(attention)
    decoder = pack_decoder(model, weights)
    state = _state_at(task.length // 2, model, task)
    generator, token = _seeded_token(model, task)
    draws = start_draws(SamplingParams(), task.batch, model.head, model.device, generator)
    steps = decoder.count_steps(state, draws, task.length)
    run = partial(decoder.steps_and_draws, token, state, draws, steps)
    check = partial(check_compiled, model, decoder, task.batch)
    is_plain = attention is None and not task.language
    work = _least_work(task, steps, weights) if is_plain else {}
    return Method(check, run, units=steps, **work)


def read_weights(weights: str, task: Task) -> Method:
    """Reads as many bytes as the matrices have: the least time of a step.

    The maximum of integers was the fastest read by all of torch's threads, compared with sums and
    matrix-vector products.
    """
    count = task.matrix_weights * WEIGHT_BYTES[weights]
    data = torch.ones(count // 4, dtype=torch.int32)  # written to, so that each page has memory
    return Method(lambda: None, run=data.amax, traffic=count)


def pack_decoder(
    model: AutoregressiveTransformer, weights: str, *, fuse: bool = False
) -> CompiledDecoder:
    """Packs the weights; NotMeasured where no backend compiles the model."""
    try:
        return linattn_models.compile_decoder(model, weights, fuse=fuse)
    except linattn_models.CannotCompile as reason:
        raise NotMeasured(str(reason)) from None


def _generation(
    model: AutoregressiveTransformer, check: Callable[[], str | None], task: Task, work: Work,
    decoder: str | CompiledDecoder,
) -> Method:  # fmt: skip
    def measure() -> float:
        speed = generation_throughput(model, batch=task.batch, decoder=decoder)
        return task.batch * speed.seconds_per_sample

    return Method(check, measure=measure, units=task.batch, **work)


def _step(
    decoder: AutoregressiveTransformer | PeerDecoder, model: AutoregressiveTransformer,
    state: Any, task: Task, work: Work,
) -> Method:  # fmt: skip
    generator, token = _seeded_token(model, task)

    @torch.inference_mode()
    def step() -> Tensor:
        parameters, _ = decoder.step(token, state)
        return model.head.sample(parameters, generator=generator)

    return Method(partial(check_steps, decoder), step, **work)


def _least_work(task: Task, steps: int = 1, weights: str = "float32") -> Work:
    """The least of linear attention in so many steps; that of softmax grows with N."""
    return {"operations": steps * task.operations, "traffic": steps * task.traffic(weights)}


def _peer(task: Task, settings: Settings) -> PeerDecoder:
    return PeerDecoder(peers.load("fast_transformers.builders", settings), task.model())


def _state_at(position: int, model: AutoregressiveTransformer, task: Task) -> Any:
    state = model.transformer.initial_state(task.batch, max_length=task.length)
    return dataclasses.replace(state, cursor=Cursor(position, position))


def _seeded_token(model: AutoregressiveTransformer, task: Task) -> tuple[torch.Generator, Tensor]:
    """A source of randomness and tokens (batch,)."""
    generator = torch.Generator().manual_seed(0)
    return generator, torch.randint(model.head.levels, (task.batch,), generator=generator)
