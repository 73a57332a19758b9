"""The paper's MNIST model with random weights: single steps, and whole images."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.cases import decoders
from benchmarks.cases.decoders import LINEAR, STATEFUL_SOFTMAX, compiled_name
from benchmarks.cases.models import MODEL, WEIGHT_BYTES, Task
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.measure.cases import Case, Make, Settings, registry
from benchmarks.measure.results import Target

BATCH, MANY = 100, 10_000
FLOAT32, BFLOAT16, INT8 = (compiled_name(weights) for weights in WEIGHT_BYTES)
READING = {weights: f"reading the weights ({weights})" for weights in WEIGHT_BYTES}
FIRST, LAST = "first step", "784th step"
# Promised on a GPU, where a compiled decoder is a CUDA graph.
IMAGES_PER_SECOND, ONE_IMAGE_SECONDS = 5_000, 0.2
GPU: dict[str, Any] = {"device": "cuda", "rounds": (2, 10)}


def _growing(asked: Task, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    return {
        f"{name}, {ordinal}": partial(decoders.eager_step, attention, task, position)
        for name, attention in ((LINEAR, "linear"), (STATEFUL_SOFTMAX, "softmax"))
        for ordinal, position in ((FIRST, 0), (LAST, task.length - 1))
    }


def _compiled(asked: Task, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    return {
        **{compiled_name(each): partial(decoders.compiled_step, each, task) for each in READING},
        **{name: partial(decoders.reading, weights, task) for weights, name in READING.items()},
        LINEAR: partial(decoders.eager_step, "linear", task, task.length // 2),
        FAST_TRANSFORMERS: partial(decoders.peer_step, task, settings),
    }


def _whole(asked: Task, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    return {
        **{compiled_name(each): partial(decoders.compiled, each, task) for each in WEIGHT_BYTES},
        LINEAR: partial(decoders.stateful, "linear", task),
        FAST_TRANSFORMERS: partial(decoders.peer, task, settings),
        STATEFUL_SOFTMAX: partial(decoders.stateful, "softmax", task),
    }


def _steps(name: str, task: Task, *promised: Target) -> tuple[Case, Case]:
    first, last = (f"{LINEAR}, {ordinal}" for ordinal in (FIRST, LAST))
    growth = Target(f"{LINEAR}: the {LAST} over the first", last, first, at_most=1.1)
    return (
        Case(
            f"decoding/steps/{name}",
            f"The last step costs what the first did: batch {task.batch}, {MODEL}.",
            setup=partial(_growing, task), targets=(growth,), unit="step", seconds=10,
        ),
        Case(
            f"decoding/compiled-steps/{name}",
            f"Steps with their draws, as generate makes them: batch {task.batch}, {MODEL}.",
            setup=partial(_compiled, task), targets=promised, unit="step",
        ),
    )  # fmt: skip


def _images(name: str, task: Task, *targets: Target, **fields: Any) -> Case:
    shows = f"Whole images from start to end, {task.batch:,} at once: {MODEL}."
    setup = partial(_whole, task)
    return Case(
        f"generation/images/{name}", shows, setup=setup, targets=targets, unit="image", **fields
    )


def _over_reading(weights: str, at_most: float) -> Target:
    name = compiled_name(weights)
    shows = f"{name}: time of a step over only reading the weights"
    return Target(shows, name, READING[weights], at_most=at_most)


faster = Target.faster
registry.add(
    *_steps(
        "one-image", Task(1), _over_reading("float32", 1.12), _over_reading("bfloat16", 1.3),
        _over_reading("int8", 1.9),
    ),
    *_steps(
        f"batch-{BATCH}", Task(BATCH),
        Target(f"{FLOAT32}: a step of {BATCH} images", FLOAT32, at_most=7e-3),
        Target(f"{BFLOAT16}: a step of {BATCH} images", BFLOAT16, at_most=3.2e-3),
        faster(FLOAT32, FAST_TRANSFORMERS, 2), faster(BFLOAT16, FAST_TRANSFORMERS, 4),
    ),
    _images(
        "one-image", Task(1), faster(FLOAT32, FAST_TRANSFORMERS, 4.5),
        faster(BFLOAT16, FAST_TRANSFORMERS, 8), faster(INT8, FAST_TRANSFORMERS, 11),
        faster(FLOAT32, STATEFUL_SOFTMAX, 3), faster(LINEAR, FAST_TRANSFORMERS, 1.6), seconds=75,
    ),
    _images(
        f"batch-{BATCH}", Task(BATCH), faster(FLOAT32, STATEFUL_SOFTMAX, 8),
        faster(LINEAR, STATEFUL_SOFTMAX, 3.5), seconds=300, rounds=(3, 5),
    ),
    _images(
        "one-image", Task(1),
        *(Target(f"{g}: one image", g, at_most=ONE_IMAGE_SECONDS) for g in (FLOAT32, BFLOAT16)),
        seconds=8, **GPU,
    ),
    _images(f"batch-{BATCH}", Task(BATCH), seconds=6, **GPU),
    _images(
        f"batch-{MANY}", Task(MANY),
        Target(
            f"{BFLOAT16}: an image, {IMAGES_PER_SECOND:,} per second", BFLOAT16,
            at_most=1 / IMAGES_PER_SECOND,
        ),
        seconds=25, **GPU,
    ),
)  # fmt: skip
