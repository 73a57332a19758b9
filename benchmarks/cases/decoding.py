"""Single steps of the paper's MNIST model with random weights, eagerly and compiled."""

from __future__ import annotations

from collections.abc import Sequence
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
from benchmarks.cases.models import MODEL, QUICK_SIZE, WEIGHT_BYTES, Size
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.measure.cases import Case, Make, Settings, registry
from benchmarks.measure.results import CaseResult, Target

LARGE_BATCH, QUICK_BATCH = 100, 3
ATTENTIONS = {LINEAR: "linear", STATEFUL_SOFTMAX: "softmax"}
FLOAT32, BFLOAT16, INT8 = (compiled_name(weights) for weights in WEIGHT_BYTES)
FIRST, LAST = "first step", "784th step"


def sizes(batch: int, settings: Settings) -> tuple[Size, int]:
    """The model's size and the batch, small in a quick run."""
    return (QUICK_SIZE, min(batch, QUICK_BATCH)) if settings.quick else (Size(), batch)


def _steps(batch: int, settings: Settings, _: Sequence[CaseResult] = ()) -> dict[str, Make]:
    size, batch = sizes(batch, settings)
    return {
        f"{name}, {ordinal}": partial(eager_step, attention, size, batch, position)
        for name, attention in ATTENTIONS.items()
        for ordinal, position in ((FIRST, 0), (LAST, size.length - 1))
    }


def _compiled(batch: int, settings: Settings, _: Sequence[CaseResult] = ()) -> dict[str, Make]:
    size, batch = sizes(batch, settings)
    return {
        **{compiled_name(w): partial(compiled_step, w, size, batch) for w in WEIGHT_BYTES},
        **{_reading(weights): partial(reading, weights, size) for weights in WEIGHT_BYTES},
        LINEAR: partial(eager_step, "linear", size, batch, size.length // 2),
        FAST_TRANSFORMERS: partial(peer_step, size, batch, settings),
    }


def _reading(weights: str) -> str:
    return f"reading the weights ({weights})"


def _over_reading(weights: str, at_most: float) -> Target:
    name = compiled_name(weights)
    shows = f"{name}: time of a step over merely reading the weights"
    return Target(shows, name, _reading(weights), at_most=at_most)


def _seconds_a_step(name: str, at_most: float) -> Target:
    return Target(f"{name}: a step of {LARGE_BATCH} images", name, at_most=at_most)


PROMISED = {
    1: (
        _over_reading("float32", 1.12),
        _over_reading("bfloat16", 1.15),
        _over_reading("int8", 1.6),
    ),
    LARGE_BATCH: (
        _seconds_a_step(FLOAT32, 7e-3),
        _seconds_a_step(BFLOAT16, 3.5e-3),
        Target.faster(FLOAT32, FAST_TRANSFORMERS, 2),
        Target.faster(BFLOAT16, FAST_TRANSFORMERS, 4),
    ),
}
BATCHES = {"one-image": 1, f"batch-{LARGE_BATCH}": LARGE_BATCH}

for _name, _batch in BATCHES.items():
    registry.add(
        Case(
            f"decoding/steps/{_name}",
            shows=f"The last step costs what the first did: batch {_batch}, {MODEL}.",
            setup=partial(_steps, _batch),
            targets=(
                Target(
                    f"{LINEAR}: the {LAST} over the first",
                    f"{LINEAR}, {LAST}",
                    f"{LINEAR}, {FIRST}",
                    at_most=1.1,
                ),
            ),
            unit="step",
            seconds=10,
        )
    )
for _name, _batch in BATCHES.items():
    registry.add(
        Case(
            f"decoding/compiled-steps/{_name}",
            shows=f"A whole step and its draw in one call: batch {_batch}, {MODEL}.",
            setup=partial(_compiled, _batch),
            targets=PROMISED[_batch],
            unit="step",
        )
    )
