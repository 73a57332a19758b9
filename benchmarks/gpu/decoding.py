"""Decoding cases: the paper's MNIST model at one image, a hundred and ten thousand at once."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import torch

from benchmarks.cases.decoding import QUICK_SIZE, Size, build_model, compiled, stateful
from benchmarks.gpu.instrument import Instrument, instrument
from benchmarks.gpu.placed import guarded, placed
from benchmarks.registry import Absent, Case, Method, NotMeasured, Registry, Settings, Target
from linattn_models import generation_throughput

BATCHES = {"one-image": 1, "batch-100": 100, "batch-10000": 10_000}
QUICK_BATCH = 3
LINEAR = "linear (eager)"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
MODEL = "8 layers, 8 heads of 32, 784 pixels, mixture of 10 logistics"
SAMPLED = 6  # positions of an image that are timed where whole images would take long
SMALLEST_SEARCHED, LARGEST_SEARCHED, QUICK_SEARCHED = 32, 2**15, 4
WORTH_DOUBLING = 1.02  # images a second gained; less is none

IMAGES_PER_SECOND, OVER_SOFTMAX, ONE_IMAGE_SECONDS = 5_000, 50, 0.2


def compiled_name(weights: str) -> str:
    """The name of the method whose whole step is captured as a CUDA graph."""
    return f"linear (CUDA graph, {weights})"


def softmax_name(dtype: str) -> str:
    """The name of the key/value-cached softmax at the batch that suits it best."""
    return f"stateful softmax, best batch ({dtype})"


def register(registry: Registry) -> None:
    """Adds a case for each batch; the last holds the softmax that it is compared with."""
    fast = compiled_name("bfloat16")
    one = [
        Target(f"{compiled_name(w)}: one image", compiled_name(w), at_most=ONE_IMAGE_SECONDS)
        for w in DTYPES
    ]
    many = [
        Target(
            f"{fast}: an image, {IMAGES_PER_SECOND:,} a second", fast, at_most=1 / IMAGES_PER_SECOND
        ),
        *(Target.faster(fast, softmax_name(dtype), OVER_SOFTMAX) for dtype in DTYPES),
    ]
    registry.add(_case("one-image", tuple(one), seconds=8))
    registry.add(_case("batch-10000", tuple(many), seconds=25))
    registry.add(_case("batch-100", (), seconds=6))


def _case(name: str, targets: tuple[Target, ...], seconds: float) -> Case:
    return Case(
        f"decoding/{name}",
        shows=f"Whole images from start to end, {BATCHES[name]:,} at once: {MODEL}.",
        setup=lambda settings: _entries(name, settings),
        targets=targets,
        unit="image",
        seconds=seconds,
        rounds=(2, 10),
    )


def _entries(name: str, settings: Settings) -> list[Method | Absent]:
    on, batch = instrument(settings.device), BATCHES[name]
    size = QUICK_SIZE if settings.quick else Size()
    batch = min(batch, QUICK_BATCH) if settings.quick else batch
    makes: dict[str, Callable[[], Method | Absent]] = {
        compiled_name(weights): functools.partial(compiled, weights, size, batch, settings.device)
        for weights in DTYPES
    }
    makes[LINEAR] = lambda: _eager(LINEAR, "linear", size, batch, settings.device)
    if name == "batch-10000":
        for dtype in DTYPES:
            makes[softmax_name(dtype)] = functools.partial(_best_softmax, dtype, size, settings, on)
    else:
        rival = "stateful softmax"
        makes[rival] = lambda: _eager(rival, "softmax", size, batch, settings.device)
    return [placed(method, make, on) for method, make in makes.items()]


def _eager(name: str, attention: str, size: Size, batch: int, device: str) -> Method:
    positions = min(SAMPLED, size.length)
    return stateful(name, attention, size, batch, device=device, positions=positions)


def _best_softmax(dtype: str, size: Size, settings: Settings, on: Instrument) -> Method:
    """Softmax with its cache at the batch that gives the most images a second."""
    kind, device = DTYPES[dtype], settings.device
    model = build_model("softmax", size, device, kind)

    def rate(batch: int) -> float:
        timed = generation_throughput(model, batch=batch, decoder="eager", steps=SAMPLED)
        return timed.samples_per_second

    most = QUICK_SEARCHED if settings.quick else LARGEST_SEARCHED
    batch = best_batch(
        lambda batch: guarded("softmax", lambda: rate(batch), on),
        smallest=min(SMALLEST_SEARCHED, most), largest=most,
    )  # fmt: skip
    made = stateful(
        softmax_name(dtype), "softmax", size, batch, device=device, dtype=kind, positions=SAMPLED
    )
    return dataclasses.replace(made, note=f"batch {batch:,}")


def best_batch(rate: Callable[[int], float], *, smallest: int, largest: int) -> int:
    """Returns the batch, found by doubling, beyond which the rate does not grow or nothing fits.

    Args:
        rate: of a batch; raises NotMeasured where it does not fit.

    Raises:
        NotMeasured: when not even the smallest does.
    """
    best, best_rate = smallest, rate(smallest)
    while 2 * best <= largest:
        try:
            found = rate(2 * best)
        except NotMeasured:
            break
        if found < WORTH_DOUBLING * best_rate:
            break
        best, best_rate = 2 * best, found
    return best
