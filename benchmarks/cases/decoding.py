"""Single steps of the paper's MNIST model with random weights, eagerly and compiled."""

from __future__ import annotations

from functools import partial

from benchmarks.cases.decoders import (
    LINEAR,
    STATEFUL_SOFTMAX,
    compiled_name,
    compiled_step,
    eager_step,
    peer_step,
    reading,
)
from benchmarks.cases.models import MODEL, WEIGHT_BYTES, Task
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.measure.cases import Case, Make, Settings, registry
from benchmarks.measure.results import Target

LARGE_BATCH = 100
ATTENTIONS = {LINEAR: "linear", STATEFUL_SOFTMAX: "softmax"}
FLOAT32, BFLOAT16, INT8 = (compiled_name(weights) for weights in WEIGHT_BYTES)
READING = {weights: f"reading the weights ({weights})" for weights in WEIGHT_BYTES}
FIRST, LAST = "first step", "784th step"


def _steps(asked: Task, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    return {
        f"{name}, {ordinal}": partial(eager_step, attention, task, position)
        for name, attention in ATTENTIONS.items()
        for ordinal, position in ((FIRST, 0), (LAST, task.length - 1))
    }


def _compiled(asked: Task, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    return {
        **{compiled_name(weights): partial(compiled_step, weights, task) for weights in READING},
        **{name: partial(reading, weights, task) for weights, name in READING.items()},
        LINEAR: partial(eager_step, "linear", task, task.length // 2),
        FAST_TRANSFORMERS: partial(peer_step, task, settings),
    }


def _over_reading(weights: str, at_most: float) -> Target:
    name = compiled_name(weights)
    shows = f"{name}: time of a step over merely reading the weights"
    return Target(shows, name, READING[weights], at_most=at_most)


def _seconds(name: str, at_most: float) -> Target:
    return Target(f"{name}: a step of {LARGE_BATCH} images", name, at_most=at_most)


_GROWTH = Target(
    f"{LINEAR}: the {LAST} over the first", f"{LINEAR}, {LAST}", f"{LINEAR}, {FIRST}", at_most=1.1
)
_PROMISED = {
    "one-image": (
        _over_reading("float32", 1.12), _over_reading("bfloat16", 1.15), _over_reading("int8", 1.6),
    ),
    f"batch-{LARGE_BATCH}": (
        _seconds(FLOAT32, 7e-3), _seconds(BFLOAT16, 3.5e-3),
        Target.faster(FLOAT32, FAST_TRANSFORMERS, 2), Target.faster(BFLOAT16, FAST_TRANSFORMERS, 4),
    ),
}  # fmt: skip
_TASKS = {"one-image": Task(1), f"batch-{LARGE_BATCH}": Task(LARGE_BATCH)}
for _name, _task in _TASKS.items():
    registry.add(
        Case(
            f"decoding/steps/{_name}",
            f"The last step costs what the first did: batch {_task.batch}, {MODEL}.",
            setup=partial(_steps, _task), targets=(_GROWTH,), unit="step", seconds=10,
        ),
        Case(
            f"decoding/compiled-steps/{_name}",
            f"A whole step and its draw in one call: batch {_task.batch}, {MODEL}.",
            setup=partial(_compiled, _task), targets=_PROMISED[_name], unit="step",
        ),
    )  # fmt: skip
