"""Whole images on a GPU by the paper's MNIST model: one, a hundred and ten thousand at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial

import torch

from benchmarks.cases.decoders import LINEAR, STATEFUL_SOFTMAX, compiled, stateful
from benchmarks.cases.models import MODEL, QUICK_SIZE, Size, build_model
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.results import CaseResult, Target
from linattn_models import generation_throughput
from linattn_models.throughput import best_batch

QUICK_BATCH = 3
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SAMPLED = 6  # positions of an image that are timed where whole images would take long
SMALLEST_SEARCHED, LARGEST_SEARCHED, QUICK_SEARCHED = 32, 2**15, 4
IMAGES_PER_SECOND, OVER_SOFTMAX, ONE_IMAGE_SECONDS = 5_000, 50, 0.2


def graph_name(weights: str) -> str:
    """The name of the method whose whole step is captured as a CUDA graph."""
    return f"linear (CUDA graph, {weights})"


def softmax_name(dtype: str) -> str:
    """The name of the key/value-cached softmax at the batch that suits it best."""
    return f"{STATEFUL_SOFTMAX}, best batch ({dtype})"


def _setup(
    asked: int, searched: bool, settings: Settings, _: Sequence[CaseResult] = ()
) -> dict[str, Make]:
    size = QUICK_SIZE if settings.quick else Size()
    batch = min(asked, QUICK_BATCH) if settings.quick else asked
    eager = partial(
        stateful, size=size, batch=batch, device=settings.device,
        positions=min(SAMPLED, size.length),
    )  # fmt: skip
    ours: dict[str, Make] = {
        graph_name(weights): partial(compiled, weights, size, batch, settings.device)
        for weights in DTYPES
    }
    ours[LINEAR] = partial(eager, "linear")
    if not searched:
        return {**ours, STATEFUL_SOFTMAX: partial(eager, "softmax")}
    return {**ours, **{softmax_name(d): partial(_best_softmax, d, size, settings) for d in DTYPES}}


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


def _case(name: str, batch: int, seconds: float, *targets: Target, searched: bool = False) -> Case:
    return Case(
        f"generation/images/{name}",
        shows=f"Whole images from start to end, {batch:,} at once: {MODEL}.",
        setup=partial(_setup, batch, searched),
        targets=targets,
        unit="image",
        seconds=seconds,
        rounds=(2, 10),
        device="cuda",
    )


_FAST = graph_name("bfloat16")
_ONE = [
    Target(f"{graph_name(w)}: one image", graph_name(w), at_most=ONE_IMAGE_SECONDS) for w in DTYPES
]
registry.add(_case("one-image", 1, 8, *_ONE))
registry.add(_case("batch-100", 100, 6))
registry.add(
    _case(
        "batch-10000", 10_000, 25,
        Target(
            f"{_FAST}: an image, {IMAGES_PER_SECOND:,} a second", _FAST,
            at_most=1 / IMAGES_PER_SECOND,
        ),
        *(Target.faster(_FAST, softmax_name(dtype), OVER_SOFTMAX) for dtype in DTYPES),
        searched=True,
    )
)  # fmt: skip
