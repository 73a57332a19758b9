"""Whole images by the paper's MNIST model with random weights: eagerly, and compiled."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

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
from benchmarks.cases.models import MODEL, WEIGHT_BYTES, Size, build_model
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.results import CaseResult, Target
from linattn_models import generation_throughput
from linattn_models.throughput import best_batch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLED = 6  # positions of an image that are timed where whole images would take long
SMALLEST_SEARCHED, LARGEST_SEARCHED, QUICK_SEARCHED = 32, 2**15, 4
IMAGES_PER_SECOND, OVER_SOFTMAX, ONE_IMAGE_SECONDS = 5_000, 50, 0.2
MANY = 10_000


def graph_name(weights: str) -> str:
    """The name of the method whose whole step is captured as a CUDA graph."""
    return f"linear (CUDA graph, {weights})"


def softmax_name(dtype: str) -> str:
    """The name of the key/value-cached softmax at the batch that suits it best."""
    return f"{STATEFUL_SOFTMAX}, best batch ({dtype})"


def _on_cpu(
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


def _on_gpu(batch: int, settings: Settings, _: Sequence[CaseResult] = ()) -> dict[str, Make]:
    device, searched = settings.device, batch == MANY
    size, batch = sizes(batch, settings)
    eager = partial(
        stateful, size=size, batch=batch, device=device, positions=min(SAMPLED, size.length)
    )
    graphs = {graph_name(w): partial(compiled, w, size, batch, device) for w in DTYPES}
    softmax: dict[str, Make] = {STATEFUL_SOFTMAX: partial(eager, "softmax")}
    if searched:
        softmax = {softmax_name(d): partial(_best_softmax, d, size, settings) for d in DTYPES}
    return {**graphs, LINEAR: partial(eager, "linear"), **softmax}


def _best_softmax(dtype: str, size: Size, settings: Settings) -> Method:
    """Softmax with its cache at the batch that gives the most images a second."""
    kind, device = DTYPES[dtype], settings.device
    model = build_model("softmax", size, device, kind)
    most = QUICK_SEARCHED if settings.quick else LARGEST_SEARCHED
    found = best_batch(
        lambda batch: generation_throughput(model, batch=batch, decoder="eager", steps=SAMPLED),
        torch.device(device),
        smallest=min(SMALLEST_SEARCHED, most),
        largest=most,
    )
    made = stateful("softmax", size, found.batch, device=device, dtype=kind, positions=SAMPLED)
    return dataclasses.replace(made, note=f"batch {found.batch:,}")


def _case(name: str, batch: int, **fields: Any) -> Case:
    return Case(
        f"generation/images/{name}",
        shows=f"Whole images from start to end, {batch:,} at once: {MODEL}.",
        unit="image",
        **fields,
    )


def _gpu_case(name: str, batch: int, seconds: float, *targets: Target) -> Case:
    return _case(
        name, batch, setup=partial(_on_gpu, batch), targets=targets, seconds=seconds,
        rounds=(2, 10), device="cuda",
    )  # fmt: skip


_FAST = graph_name("bfloat16")
for _added in (
    _case(
        "one-image", 1, setup=partial(_on_cpu, 1, 16), seconds=75,
        targets=(
            Target.faster(FLOAT32, FAST_TRANSFORMERS, 4.5),
            Target.faster(BFLOAT16, FAST_TRANSFORMERS, 8),
            Target.faster(INT8, FAST_TRANSFORMERS, 11),
            Target.faster(FLOAT32, STATEFUL_SOFTMAX, 3),
            Target.faster(LINEAR, FAST_TRANSFORMERS, 1.6),
            Target.faster(LINEAR, RERUN_SOFTMAX, 20),
        ),
    ),
    _case(
        "batch-100", LARGE_BATCH, setup=partial(_on_cpu, LARGE_BATCH, 6), seconds=300,
        rounds=(3, 5),
        targets=(
            Target.faster(FLOAT32, STATEFUL_SOFTMAX, 8),
            Target.faster(LINEAR, STATEFUL_SOFTMAX, 3.5),
            Target.faster(LINEAR, RERUN_SOFTMAX, 60),
        ),
    ),
    _gpu_case(
        "one-image", 1, 8,
        *(
            Target(f"{graph_name(w)}: one image", graph_name(w), at_most=ONE_IMAGE_SECONDS)
            for w in DTYPES
        ),
    ),
    _gpu_case("batch-100", LARGE_BATCH, 6),
    _gpu_case(
        "batch-10000", MANY, 25,
        Target(
            f"{_FAST}: an image, {IMAGES_PER_SECOND:,} a second", _FAST,
            at_most=1 / IMAGES_PER_SECOND,
        ),
        *(Target.faster(_FAST, softmax_name(dtype), OVER_SOFTMAX) for dtype in DTYPES),
    ),
):  # fmt: skip
    registry.add(_added)
