"""Whole images by the paper's MNIST model with random weights: eagerly, and compiled."""

from __future__ import annotations

import dataclasses
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
from benchmarks.cases.decoding import BFLOAT16, FLOAT32, INT8, LARGE_BATCH
from benchmarks.cases.models import MODEL, WEIGHT_BYTES, Task
from benchmarks.cases.peers import FAST_TRANSFORMERS
from benchmarks.measure.cases import Case, Make, Method, Settings, registry
from benchmarks.measure.results import Target
from linattn_models import generation_throughput
from linattn_models.throughput import best_batch

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
GRAPHS = {weights: f"linear (CUDA graph, {weights})" for weights in DTYPES}
BEST_SOFTMAX = {dtype: f"{STATEFUL_SOFTMAX}, best batch ({dtype})" for dtype in DTYPES}
SAMPLED = 6  # positions of an image that are timed where whole images would take long
SMALLEST_SEARCHED, LARGEST_SEARCHED, QUICK_SEARCHED = 32, 2**15, 4
IMAGES_PER_SECOND, OVER_SOFTMAX, ONE_IMAGE_SECONDS = 5_000, 50, 0.2
MANY = 10_000


def _on_cpu(asked: Task, positions: int, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    return {
        **{compiled_name(weights): partial(compiled, weights, task) for weights in WEIGHT_BYTES},
        LINEAR: partial(stateful, "linear", task),
        FAST_TRANSFORMERS: partial(peer, task, settings),
        STATEFUL_SOFTMAX: partial(stateful, "softmax", task),
        RERUN_SOFTMAX: partial(rerunning, task, positions),
    }


def _on_gpu(asked: Task, settings: Settings) -> dict[str, Make]:
    task = asked.sized(settings)
    eager = partial(stateful, task=task, positions=min(SAMPLED, task.length))
    softmax: dict[str, Make] = {STATEFUL_SOFTMAX: partial(eager, "softmax")}
    if asked.batch == MANY:
        softmax = {n: partial(_best_softmax, d, task, settings) for d, n in BEST_SOFTMAX.items()}
    graphs = {name: partial(compiled, weights, task) for weights, name in GRAPHS.items()}
    return {**graphs, LINEAR: partial(eager, "linear"), **softmax}


def _best_softmax(dtype: str, task: Task, settings: Settings) -> Method:
    """Softmax with its cache at the batch that gives the most images a second."""
    model = task.model("softmax", DTYPES[dtype])
    most = QUICK_SEARCHED if settings.quick else LARGEST_SEARCHED
    best = best_batch(
        lambda batch: generation_throughput(model, batch=batch, decoder="eager", steps=SAMPLED),
        torch.device(task.device),
        smallest=min(SMALLEST_SEARCHED, most),
        largest=most,
    ).batch
    task = dataclasses.replace(task, batch=best)
    made = stateful("softmax", task, dtype=DTYPES[dtype], positions=SAMPLED)
    return dataclasses.replace(made, note=f"batch {best:,}")


def _case(name: str, task: Task, *targets: Target, positions: int = 0, **fields: Any) -> Case:
    """On a GPU unless the positions at which rerunning is timed are given."""
    if positions:
        fields["setup"] = partial(_on_cpu, task, positions)
    else:
        fields |= {"setup": partial(_on_gpu, task), "device": "cuda", "rounds": (2, 10)}
    return Case(
        f"generation/images/{name}",
        f"Whole images from start to end, {task.batch:,} at once: {MODEL}.",
        targets=targets, unit="image", **fields,
    )  # fmt: skip


_BEST = GRAPHS["bfloat16"]
_RATE = f"{_BEST}: an image, {IMAGES_PER_SECOND:,} a second"
registry.add(
    _case(
        "one-image", Task(1),
        Target.faster(FLOAT32, FAST_TRANSFORMERS, 4.5),
        Target.faster(BFLOAT16, FAST_TRANSFORMERS, 8),
        Target.faster(INT8, FAST_TRANSFORMERS, 11),
        Target.faster(FLOAT32, STATEFUL_SOFTMAX, 3),
        Target.faster(LINEAR, FAST_TRANSFORMERS, 1.6),
        Target.faster(LINEAR, RERUN_SOFTMAX, 20),
        positions=16, seconds=75,
    ),
    _case(
        "batch-100", Task(LARGE_BATCH),
        Target.faster(FLOAT32, STATEFUL_SOFTMAX, 8),
        Target.faster(LINEAR, STATEFUL_SOFTMAX, 3.5),
        Target.faster(LINEAR, RERUN_SOFTMAX, 60),
        positions=6, seconds=300, rounds=(3, 5),
    ),
    _case(
        "one-image", Task(1),
        *(Target(f"{g}: one image", g, at_most=ONE_IMAGE_SECONDS) for g in GRAPHS.values()),
        seconds=8,
    ),
    _case("batch-100", Task(LARGE_BATCH), seconds=6),
    _case(
        "batch-10000", Task(MANY),
        Target(_RATE, _BEST, at_most=1 / IMAGES_PER_SECOND),
        *(Target.faster(_BEST, softmax, OVER_SOFTMAX) for softmax in BEST_SOFTMAX.values()),
        seconds=25,
    ),
)  # fmt: skip
