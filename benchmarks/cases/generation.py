"""Whole images by the paper's MNIST model with random weights, eagerly and compiled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from benchmarks.cases.decoders import (
    LINEAR,
    RERUN_SOFTMAX,
    STATEFUL_SOFTMAX,
    compiled,
    compiled_name,
    peer,
    rerunning,
    stateful,
)
from benchmarks.cases.decoding import BFLOAT16, FLOAT32, INT8, LARGE_BATCH, sizes
from benchmarks.cases.models import MODEL, WEIGHT_BYTES
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.measure.cases import Case, Make, Settings, registry
from benchmarks.measure.results import CaseResult, Target


def _images(
    batch: int, positions: int, settings: Settings, _: Sequence[CaseResult] = ()
) -> dict[str, Make]:
    size, batch = sizes(batch, settings)
    return {
        **{compiled_name(w): partial(compiled, w, size, batch) for w in WEIGHT_BYTES},
        LINEAR: partial(stateful, "linear", size, batch),
        FAST_TRANSFORMERS: partial(peer, size, batch, settings),
        STATEFUL_SOFTMAX: partial(stateful, "softmax", size, batch),
        RERUN_SOFTMAX: partial(rerunning, size, batch, positions),
    }


registry.add(
    Case(
        "generation/images/one-image",
        shows=f"One image from start to end: {MODEL}.",
        setup=partial(_images, 1, 16),
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
        setup=partial(_images, LARGE_BATCH, 6),
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
