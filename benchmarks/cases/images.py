"""Images by every way to generate them: tables 1, 2, 4 and 5 of the paper, and gains by length.

What an image costs does not depend on what a model has learned: the weights are random. One image
alone shows the latency; the best batch of each way, searched within the free memory, the
throughput. Some positions are timed and the others interpolated, unless a run asks for whole
images. Softmax without a cache and LSH run the prefix again for each token, which is always timed
at some positions: nothing can be kept of what all tokens before decide.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import torch

from benchmarks import oracle
from benchmarks.case import Case, Make, Method, Settings
from benchmarks.cases.decoder_checks import CHECKED_BATCH, check_compiled, check_steps
from benchmarks.cases.decoders import pack_decoder
from benchmarks.cases.models import Task
from benchmarks.cases.operators import CHUNK
from linattn_lab.batches import best_batch
from linattn_lab.machine import Device
from linattn_lab.throughput import Throughput, generation_throughput
from linattn_lab.timing import NotMeasured
from linattn_models import AutoregressiveTransformer, CompiledDecoder


@dataclasses.dataclass(frozen=True)
class Way:
    """A way to generate: an attention, whether its state is kept, and whether it is compiled."""

    attention: str
    method: Literal["stateful", "rerun"] = "stateful"
    compiled: bool = False

    def decoder(self, model: AutoregressiveTransformer) -> str | CompiledDecoder:
        """What makes the steps of the model."""
        return pack_decoder(model, "float32") if self.compiled else "eager"


class Search(NamedTuple):
    """The limits of a search: the largest batch, and the most seconds of a position."""

    largest: int
    seconds: float


WAYS = {
    "linear": Way("linear"),
    "linear-compiled": Way("linear", compiled=True),
    "stateful-softmax": Way("softmax"),
    "softmax": Way("softmax", "rerun"),
    "lsh-1": Way("lsh-1", "rerun"),
    "lsh-4": Way("lsh-4", "rerun"),
}
OVER_LENGTH = ("linear", "linear-compiled", "stateful-softmax", "softmax")
LINEAR, ONE, BEST = "linear", "one-image", "best-batch"
SHAPES = {"mnist": Task(), "cifar10": Task(num_layers=16, length=3_072)}
LENGTHS, BATCHES = (64, 256, 784, 1_568, 3_072), (1, 8, 64, 256)
# Positions that are timed of an image; of two batches that are compared; of a prefix that is run
# again where whole images were asked for.
POSITIONS, SEARCHED, RERUN = 5, 3, 32
LAPTOP = {"mnist": 512, "cifar10": 64}  # the largest batch on a CPU, unless whole images are timed
MOST_SECONDS = 120.0  # of a batch, over length
ONCE: dict[str, Any] = {"seconds": 0, "rounds": (1, 1)}
THRICE: dict[str, Any] = {"seconds": 0, "rounds": (3, 3)}
SHORT = 5.0  # seconds within which a batch, over length, is measured in every round


def count_positions(way: Way, settings: Settings) -> int | None:
    """How many are timed of an image; None for all."""
    if settings.quick:
        return 2
    return POSITIONS if not settings.whole else RERUN if way.method == "rerun" else None


def limit_search(shape: str, settings: Settings) -> Search:
    """How far the search for the best batch of these images goes."""
    if settings.quick:
        return Search(2, 1.0)
    if settings.device == "cuda":
        return Search(10_000, 20.0 if settings.whole else 1.0)
    return Search(1_024 if settings.whole else LAPTOP[shape], 20.0)


@functools.cache  # for all batches
def check_way(way: Way, task: Task) -> str | None:
    """Compares with float64: the whole sequence, or of LSH one chunk, where it sees every key."""
    model = task.model(way.attention)
    if way.compiled:
        return check_compiled(model, pack_decoder(model, "float32"), CHECKED_BATCH)
    if way.method == "stateful":
        return check_steps(model)
    length = task.length - 1
    if way.attention != "softmax":  # beyond a chunk, what a query sees depends on rounding
        length = min(length, CHUNK - 1)
    prefix = torch.randint(2, (1, length), device=model.device)
    with torch.no_grad():
        ours, exact = (x.predict_next(prefix) for x in (model, copy.deepcopy(model).double()))
    return oracle.find_disagreement("the prediction", ours, exact)


def make_method(way: Way, asked: Task, settings: Settings, batch: int | Search) -> Method:
    """A batch of images, or the best one of a search, as a method whose unit is an image."""
    task = asked.for_settings(settings)
    model = task.model(way.attention)
    generate = partial(generation_throughput, model, method=way.method, decoder=way.decoder(model))
    figures: dict[str, float] = {}
    note = ""
    if isinstance(batch, Search):

        def search(size: int) -> Throughput:
            return generate(batch=size, steps=2 if settings.quick else SEARCHED)

        best = best_batch(search, model.device, largest=batch.largest, most_seconds=batch.seconds)
        batch, note = best.batch, f"batch {best.batch:,}"
        figures["largest-batch"] = best.largest_timed
    steps, count = count_positions(way, settings), batch

    def measure() -> float:
        timed = generate(batch=count, steps=steps)
        figures["state-bytes"] = timed.state_bytes_per_sample
        return count * timed.seconds_per_sample

    return Method(
        partial(check_way, way, task),
        measure=measure,
        units=count,
        note=note,
        figures=figures,
    )


def images_case(shape: str, batch: int | None, device: Device) -> Case:
    """Every way at a batch of one, or each at its best batch."""

    def setup(settings: Settings) -> dict[str, Make]:
        return {
            name: partial(
                make_method, way, SHAPES[shape], settings, batch or limit_search(shape, settings)
            )
            for name, way in WAYS.items()
        }

    task = SHAPES[shape]
    return Case(
        f"images/{shape}/{ONE if batch else BEST}",
        f"Images of {task.length:,} tokens by a model of {task.num_layers} layers, 8 heads of 32, "
        f"{'one alone' if batch else 'at the best batch of each way'}.",
        setup,
        ratios=tuple((name, LINEAR) for name in WAYS if name != LINEAR),
        unit="image",
        device=device,
        **(THRICE if batch else ONCE),
    )


def length_case(length: int) -> Case:
    """Every way that generates at one length, by batch."""

    def setup(settings: Settings) -> dict[str, Make]:
        makes: dict[str, Make] = {}
        for name in OVER_LENGTH:
            taken: dict[int, float] = {}  # by batch
            for batch in BATCHES[: 2 if settings.quick else None]:
                makes[f"{name}, batch {batch}"] = partial(
                    make_affordable, WAYS[name], Task(length=length), settings, batch, taken
                )
        return makes

    return Case(
        f"speedup/{length}",
        f"Sequences of {length:,} tokens by the paper's MNIST model, by batch.",
        setup,
        unit="sequence",
        **THRICE,
    )


def make_affordable(
    way: Way, task: Task, settings: Settings, batch: int, taken: dict[int, float]
) -> Method:
    """A batch, unless the one before took so long that this one would take too long."""
    if taken:
        last, seconds = next(reversed(taken.items()))
        if (expected := seconds * batch / last) > MOST_SECONDS:
            raise NotMeasured(f"expected to take {expected:,.0f} s")
    started = time.monotonic()
    method = make_method(way, task, settings, batch)
    assert method.measure is not None
    value = method.measure()
    taken[batch] = time.monotonic() - started
    return method if taken[batch] < SHORT else dataclasses.replace(method, measure=lambda: value)


CASES = (
    *(
        images_case(shape, batch, device)
        for device in get_args(Device)
        for shape in SHAPES
        for batch in (1, None)
    ),
    *map(length_case, LENGTHS),
)
