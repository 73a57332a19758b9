"""Generating with the paper's MNIST model and random weights, in eager PyTorch, float32."""

from __future__ import annotations

import torch

from benchmarks.cases.decoding import (
    FAST_TRANSFORMERS,
    LINEAR,
    QUICK_SIZE,
    RERUN_SOFTMAX,
    STATEFUL_SOFTMAX,
    Size,
    build_model,
    check_steps,
    peer,
    rerunning,
    stateful,
)
from benchmarks.registry import Absent, Case, Method, Settings, Target, registry
from linattn_models.state import Cursor, DecodingState

LARGE_BATCH, QUICK_BATCH = 100, 3
ATTENTIONS = {LINEAR: "linear", STATEFUL_SOFTMAX: "softmax"}
MODEL = "8 layers, 8 heads of 32, 784 pixels, mixture of 10 logistics"


def _images(batch: int, positions: int, settings: Settings) -> list[Method | Absent]:
    size = QUICK_SIZE if settings.quick else Size()
    batch = min(batch, QUICK_BATCH) if settings.quick else batch
    return [
        stateful(LINEAR, "linear", size, batch),
        peer(FAST_TRANSFORMERS, size, batch, settings),
        stateful(STATEFUL_SOFTMAX, "softmax", size, batch),
        rerunning(RERUN_SOFTMAX, size, batch, positions),
    ]


def _steps(batch: int, settings: Settings) -> list[Method | Absent]:
    size = QUICK_SIZE if settings.quick else Size()
    batch = min(batch, QUICK_BATCH) if settings.quick else batch
    return [
        _step_at(f"{name}, {ordinal}", ATTENTIONS[name], size, batch, position)
        for name in ATTENTIONS
        for ordinal, position in (("first step", 0), ("784th step", size.length - 1))
    ]


def _step_at(name: str, attention: str, size: Size, batch: int, position: int) -> Method:
    """One step and one draw at `position`, again and again; the numbers held do not matter."""
    model = build_model(attention, size)
    layers = model.transformer.initial_state(batch, max_length=size.length).layers
    state = DecodingState(layers, Cursor(position, position), size.length)
    generator = torch.Generator().manual_seed(0)
    token = torch.randint(model.head.levels, (batch,), generator=generator)

    @torch.inference_mode()
    def step() -> torch.Tensor:
        parameters, _ = model.step(token, state)
        return model.head.sample(parameters, generator=generator)

    return Method(name, check=lambda: check_steps(model), run=step)


def _times_faster(rival: str, at_least: float) -> Target:
    return Target(f"times faster than {rival}", rival, LINEAR, at_least=at_least)


def _steps_case(name: str, batch: int) -> Case:
    return Case(
        f"generation/steps/{name}",
        shows=f"The last step costs what the first did: batch {batch}, {MODEL}.",
        setup=lambda settings: _steps(batch, settings),
        targets=(
            Target(
                "the 784th step over the first", f"{LINEAR}, 784th step", f"{LINEAR}, first step",
                at_most=1.1,
            ),
        ),
        unit="step",
        seconds=20,
    )  # fmt: skip


registry.add(_steps_case("one-image", 1))
registry.add(_steps_case("batch-100", LARGE_BATCH))
registry.add(
    Case(
        "generation/images/one-image",
        shows=f"One image from start to end: {MODEL}.",
        setup=lambda settings: _images(1, 16, settings),
        targets=(_times_faster(FAST_TRANSFORMERS, 1.6), _times_faster(RERUN_SOFTMAX, 20)),
        unit="image",
        seconds=90,
    )
)
registry.add(
    Case(
        "generation/images/batch-100",
        shows=f"100 images side by side from start to end: {MODEL}.",
        setup=lambda settings: _images(LARGE_BATCH, 6, settings),
        targets=(_times_faster(STATEFUL_SOFTMAX, 3.5), _times_faster(RERUN_SOFTMAX, 60)),
        unit="image",
        seconds=300,
        rounds=(3, 5),
    )
)
