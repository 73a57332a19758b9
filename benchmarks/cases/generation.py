"""Generating with the paper's MNIST model and random weights, eagerly and compiled."""

from __future__ import annotations

from benchmarks.cases.decoding import (
    FAST_TRANSFORMERS,
    LINEAR,
    QUICK_SIZE,
    RERUN_SOFTMAX,
    STATEFUL_SOFTMAX,
    WEIGHT_BYTES,
    Size,
    compiled,
    compiled_name,
    compiled_step,
    eager_step,
    peer,
    peer_step,
    reading,
    rerunning,
    stateful,
)
from benchmarks.registry import Absent, Case, Method, Settings, Target, registry

LARGE_BATCH, QUICK_BATCH = 100, 3
ATTENTIONS = {LINEAR: "linear", STATEFUL_SOFTMAX: "softmax"}
MODEL = "8 layers, 8 heads of 32, 784 pixels, mixture of 10 logistics"
FLOAT32, BFLOAT16, INT8 = (compiled_name(weights) for weights in WEIGHT_BYTES)


def _sizes(batch: int, settings: Settings) -> tuple[Size, int]:
    """The model's size and the batch."""
    return (QUICK_SIZE, min(batch, QUICK_BATCH)) if settings.quick else (Size(), batch)


def _images(batch: int, positions: int, settings: Settings) -> list[Method | Absent]:
    size, batch = _sizes(batch, settings)
    return [
        *(compiled(weights, size, batch) for weights in WEIGHT_BYTES),
        stateful(LINEAR, "linear", size, batch),
        peer(FAST_TRANSFORMERS, size, batch, settings),
        stateful(STATEFUL_SOFTMAX, "softmax", size, batch),
        rerunning(RERUN_SOFTMAX, size, batch, positions),
    ]


def _steps(batch: int, settings: Settings) -> list[Method | Absent]:
    size, batch = _sizes(batch, settings)
    return [
        eager_step(f"{name}, {ordinal}", ATTENTIONS[name], size, batch, position)
        for name in ATTENTIONS
        for ordinal, position in (("first step", 0), ("784th step", size.length - 1))
    ]


def _compiled_steps(batch: int, settings: Settings) -> list[Method | Absent]:
    size, batch = _sizes(batch, settings)
    return [
        *(compiled_step(weights, size, batch) for weights in WEIGHT_BYTES),
        *(reading(_reading(weights), weights, size) for weights in WEIGHT_BYTES),
        eager_step(LINEAR, "linear", size, batch, size.length // 2),
        peer_step(FAST_TRANSFORMERS, size, batch, settings),
    ]


def _reading(weights: str) -> str:
    return f"reading the weights ({weights})"


def _over_reading(weights: str, at_most: float) -> Target:
    name = compiled_name(weights)
    shows = f"{name}: time of a step over merely reading the weights"
    return Target(shows, name, _reading(weights), at_most=at_most)


def _seconds_a_step(name: str, at_most: float) -> Target:
    return Target(f"{name}: a step of {LARGE_BATCH} images", name, at_most=at_most)


def _steps_case(name: str, batch: int) -> Case:
    return Case(
        f"generation/steps/{name}",
        shows=f"The last step costs what the first did: batch {batch}, {MODEL}.",
        setup=lambda settings: _steps(batch, settings),
        targets=(
            Target(
                f"{LINEAR}: the 784th step over the first",
                f"{LINEAR}, 784th step",
                f"{LINEAR}, first step",
                at_most=1.1,
            ),
        ),
        unit="step",
        seconds=10,
    )


def _compiled_case(name: str, batch: int, targets: tuple[Target, ...]) -> Case:
    return Case(
        f"generation/compiled-steps/{name}",
        shows=f"A whole step and its draw in one call: batch {batch}, {MODEL}.",
        setup=lambda settings: _compiled_steps(batch, settings),
        targets=targets,
        unit="step",
        seconds=20,
    )


registry.add(_steps_case("one-image", 1))
registry.add(_steps_case("batch-100", LARGE_BATCH))
registry.add(
    _compiled_case(
        "one-image",
        1,
        (
            _over_reading("float32", 1.12),
            _over_reading("bfloat16", 1.15),
            _over_reading("int8", 1.6),
        ),
    )
)
registry.add(
    _compiled_case(
        "batch-100",
        LARGE_BATCH,
        (
            _seconds_a_step(FLOAT32, 7e-3),
            _seconds_a_step(BFLOAT16, 3.5e-3),
            Target.faster(FLOAT32, FAST_TRANSFORMERS, 2),
            Target.faster(BFLOAT16, FAST_TRANSFORMERS, 4),
        ),
    )
)
registry.add(
    Case(
        "generation/images/one-image",
        shows=f"One image from start to end: {MODEL}.",
        setup=lambda settings: _images(1, 16, settings),
        targets=(
            Target.faster(FLOAT32, FAST_TRANSFORMERS, 4.5),
            Target.faster(BFLOAT16, FAST_TRANSFORMERS, 8),
            Target.faster(INT8, FAST_TRANSFORMERS, 11),
            Target.faster(FLOAT32, STATEFUL_SOFTMAX, 3),
            Target.faster(LINEAR, FAST_TRANSFORMERS, 1.6),
            Target.faster(LINEAR, RERUN_SOFTMAX, 20),
        ),
        unit="image",
        seconds=75,
    )
)
registry.add(
    Case(
        "generation/images/batch-100",
        shows=f"100 images side by side from start to end: {MODEL}.",
        setup=lambda settings: _images(LARGE_BATCH, 6, settings),
        targets=(
            Target.faster(FLOAT32, STATEFUL_SOFTMAX, 8),
            Target.faster(LINEAR, STATEFUL_SOFTMAX, 3.5),
            Target.faster(LINEAR, RERUN_SOFTMAX, 60),
        ),
        unit="image",
        seconds=300,
        rounds=(3, 5),
    )
)
