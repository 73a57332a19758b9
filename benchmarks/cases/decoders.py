"""The decoders that the cases compare: whole images, and single steps."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.cases import peers
from benchmarks.cases.decoder_checks import check_compiled, check_peer, check_rerun, check_steps
from benchmarks.cases.models import WEIGHT_BYTES, Size, build_model
from benchmarks.cases.peer_decoder import PeerDecoder
from benchmarks.measure.cases import Method, NotMeasured, Settings
from linattn_models import (
    AutoregressiveTransformer,
    CannotCompile,
    CompiledDecoder,
    compile_decoder,
    generation_throughput,
)
from linattn_models.state import Cursor, DecodingState
from linattn_models.throughput import clock

LINEAR = "linear (eager)"
STATEFUL_SOFTMAX = "stateful softmax"
RERUN_SOFTMAX = "softmax rerunning the prefix"
WARMING_LENGTH = 3


def compiled_name(weights: str) -> str:
    """The name of the method that decodes by a compiled decoder with its weights kept so."""
    return f"linear (compiled, {weights})"


def stateful(
    attention: str,
    size: Size,
    batch: int,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    positions: int | None = None,
) -> Method:
    """Generates whole images as an RNN: from sums for linear, from a cache for softmax.

    The model steps itself; its operators are of the fastest backend that is installed.

    Args:
        positions: how many are timed, the others being interpolated; None times whole images.
    """
    model = build_model(attention, size, device, dtype)
    made = _generating(
        model, lambda: check_steps(model), size, batch, decoder="eager", steps=positions
    )
    return made if attention == "linear" else _unlimited(made)


def compiled(weights: str, size: Size, batch: int, device: str = "cpu") -> Method:
    """Generates whole images by a compiled decoder, whose packing of the weights is not timed."""
    model, decoder = _compiled(weights, size, device)
    made = _generating(
        model, lambda: check_compiled(model, decoder, batch), size, batch, decoder=decoder
    )
    return dataclasses.replace(made, traffic=size.traffic_of_step(batch, weights) * size.length)


def rerunning(size: Size, batch: int, positions: int) -> Method:
    """Runs the whole prefix for each pixel; timed at some positions and interpolated."""
    model = build_model("softmax", size)
    check = functools.partial(check_rerun, model)
    return _unlimited(_generating(model, check, size, batch, method="rerun", steps=positions))


def peer(size: Size, batch: int, settings: Settings) -> Method:
    """The peer's recurrent model with the same weights, embedding, head and sampling."""
    decoder = _peer(size, settings)

    def measure() -> float:
        generator = torch.Generator().manual_seed(0)
        decoder.generate(batch, WARMING_LENGTH, generator)
        readings = clock(torch.device("cpu"))
        readings.read()
        decoder.generate(batch, size.length, generator)
        readings.read()
        return readings.seconds()[0]

    return _of_images(lambda: check_peer(decoder), measure, size, batch)


def eager_step(attention: str, size: Size, batch: int, position: int) -> Method:
    """One step and one draw at `position`, again and again; the numbers held do not matter."""
    model = build_model(attention, size)
    state = _state_at(position, model, size, batch)
    generator, token = _seeded_token(model, batch)

    @torch.inference_mode()
    def step() -> Tensor:
        parameters, _ = model.step(token, state)
        return model.head.sample(parameters, generator=generator)

    made = _of_steps(lambda: check_steps(model), step, size, batch)
    return made if attention == "linear" else _unlimited(made)


def compiled_step(weights: str, size: Size, batch: int) -> Method:
    """As `eager_step`, in the one call that a compiled decoder makes of the two."""
    model, decoder = _compiled(weights, size, "cpu")
    state = _state_at(size.length // 2, model, size, batch)
    generator, token = _seeded_token(model, batch)
    return _of_steps(
        lambda: check_compiled(model, decoder, batch),
        lambda: decoder.step_and_sample(token, state, generator=generator),
        size,
        batch,
        weights,
    )


def peer_step(size: Size, batch: int, settings: Settings) -> Method:
    """As `eager_step`, by the peer's recurrent model."""
    decoder = _peer(size, settings)
    generator, token = _seeded_token(decoder.model, batch)
    with torch.inference_mode():
        _, memory = decoder.begin(batch)

    @torch.inference_mode()
    def step() -> Tensor:
        parameters, _ = decoder.step(token, size.length // 2, memory)
        return decoder.model.head.sample(parameters, generator=generator)

    return _of_steps(lambda: check_peer(decoder), step, size, batch)


def reading(weights: str, size: Size) -> Method:
    """Merely reads as many bytes as the matrices have: no step can be faster from where they lie.

    A maximum over integers is the fastest reading that torch has on all its threads: it was timed
    beside sums and products with a vector.
    """
    count = size.matrix_weights() * WEIGHT_BYTES[weights]
    data = torch.ones(count // 4, dtype=torch.int32)  # written to, so that every page is its own
    return Method(lambda: None, run=data.amax, traffic=count)


def _generating(
    model: AutoregressiveTransformer,
    check: Callable[[], str | None],
    size: Size,
    batch: int,
    *,
    steps: int | None = None,
    **options: Any,
) -> Method:
    def measure() -> float:
        timed = generation_throughput(model, batch=batch, steps=steps, **options)
        return batch * timed.seconds_per_sample

    return _of_images(check, measure, size, batch, estimated=steps is not None)


def _unlimited(made: Method) -> Method:
    """Softmax is held against no limit: its work grows with the position."""
    return dataclasses.replace(made, operations=0, traffic=0)


def _of_images(
    check: Callable[[], str | None],
    measure: Callable[[], float],
    size: Size,
    batch: int,
    estimated: bool = False,
) -> Method:
    return Method(
        check,
        measure=measure,
        units=batch,
        operations=size.operations_per_token() * size.length * batch,
        traffic=size.traffic_of_step(batch) * size.length,
        estimated=estimated,
    )


def _of_steps(
    check: Callable[[], str | None],
    run: Callable[[], object],
    size: Size,
    batch: int,
    weights: str = "float32",
) -> Method:
    return Method(
        check,
        run,
        operations=size.operations_per_token() * batch,
        traffic=size.traffic_of_step(batch, weights),
    )


def _compiled(
    weights: str, size: Size, device: str
) -> tuple[AutoregressiveTransformer, CompiledDecoder]:
    model = build_model("linear", size, device)
    try:
        return model, compile_decoder(model, weights)
    except CannotCompile as reason:
        raise NotMeasured(str(reason)) from None


def _peer(size: Size, settings: Settings) -> PeerDecoder:
    builders = peers.load("fast_transformers.builders", settings)
    return PeerDecoder(builders, build_model("linear", size))


def _state_at(
    position: int, model: AutoregressiveTransformer, size: Size, batch: int
) -> DecodingState:
    state = model.transformer.initial_state(batch, max_length=size.length)
    return dataclasses.replace(state, cursor=Cursor(position, position))


def _seeded_token(model: AutoregressiveTransformer, batch: int) -> tuple[torch.Generator, Tensor]:
    """A source of randomness and tokens (batch,)."""
    generator = torch.Generator().manual_seed(0)
    return generator, torch.randint(model.head.levels, (batch,), generator=generator)
