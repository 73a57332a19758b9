"""The ways to generate images that are compared, and how fast they are.

Each is an attention and how its model is run:

linear            an RNN: the state has one size, and every pixel costs the same
linear-eager      the same by the model's own steps, with each backend of the operator in turn
stateful-softmax  the keys and values of all pixels so far are kept: a pixel costs more the later
                  it comes
softmax           nothing is kept, so each pixel runs all those before it again: what plain
                  transformers did, and what the paper's factor of thousands is measured against
lsh-1, lsh-4      Reformer's attention in 1 and 4 rounds of hashing. What a pixel sees depends on
                  how all those before it sort, so nothing can be kept and the prefix is run again
                  (a prefix no longer than a chunk is a single chunk)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch

from linattn_core import LinearAttentionState, explain
from linattn_lab.batches import best_batch
from linattn_lab.machine import default_device
from linattn_lab.throughput import Throughput, generation_throughput
from linattn_models import AutoregressiveTransformer
from linattn_models.attention import LinearMixer
from linattn_models.memory import lacks_memory
from linattn_models.training import environment
from pixels.presets import Attention

MethodName = Literal["linear", "linear-eager", "stateful-softmax", "softmax", "lsh-1", "lsh-4"]
Models = Mapping[Attention, AutoregressiveTransformer]

# Positions of a rerunning method where all were asked for.
_RERUN_POSITIONS = 32
# Enough to compare two batch sizes; the one that is chosen is timed at more positions.
_SEARCH_POSITIONS = 3


@dataclass(frozen=True)
class Method:
    """One way to generate.

    Attributes:
        name: in tables.
        attention: of the model.
        way: "stateful" or "rerun", as for the model's `generate`.
        backend: what runs linear attention in the model's own steps; None for the fastest one,
            with a compiled decoder where a backend has one.
    """

    name: str
    attention: Attention
    way: Literal["stateful", "rerun"]
    backend: str | None = None


LINEAR = Method("linear", "linear", "stateful")
STATEFUL_SOFTMAX = Method("stateful-softmax", "softmax", "stateful")
SOFTMAX = Method("softmax", "softmax", "rerun")
LSH_1 = Method("lsh-1", "lsh-1", "rerun")
LSH_4 = Method("lsh-4", "lsh-4", "rerun")

_BY_NAME = {method.name: method for method in (LINEAR, STATEFUL_SOFTMAX, SOFTMAX, LSH_1, LSH_4)}


def select_methods(names: Sequence[MethodName], device: torch.device) -> list[Method]:
    """The methods of these names, each once; "linear-eager" is one for each backend."""
    methods: list[Method] = []
    for name in dict.fromkeys(names):
        methods += _eager(device) if name == "linear-eager" else [_BY_NAME[name]]
    return methods


def stepping_backends(device: torch.device) -> list[str]:
    """The backends that accept a step of linear attention on this device, the fastest first."""
    vector = torch.zeros(1, 1, 32, device=device)  # (B, H, D)
    state = LinearAttentionState.zeros(1, 1, 32, 32, device=device)
    answers = explain(vector, vector, vector, state)
    return [name for name, answer in answers.items() if answer == "accepts"]


def time_method(models: Models, method: Method, batch: int, positions: int | None) -> Throughput:
    """Times `batch` images side by side.

    Args:
        models: a model for each attention. Speed does not depend on the weights.
        method: what to time.
        batch: images made side by side.
        positions: how many pixels of an image are timed, spread over it; None for all, one after
            the other, except that a rerunning method is always timed at some (32).
    """
    steps = _RERUN_POSITIONS if positions is None and method.way == "rerun" else positions
    model = models[method.attention].eval()
    decoder = "auto" if method.backend is None else "eager"
    with _use_backend(model, method.backend or "auto"):
        return generation_throughput(
            model, batch=batch, method=method.way, decoder=decoder, steps=steps
        )


@dataclass(frozen=True)
class Speed:
    """One method at one batch size.

    estimated: some positions were timed, and the others interpolated between them.
    compiled: the steps were those of a compiled decoder, and not of the model in PyTorch.
    """

    method: str
    batch: int
    images_per_second: float
    seconds_per_image: float
    state_bytes_per_image: int
    estimated: bool
    compiled: bool


@dataclass(frozen=True)
class Outcome:
    """The speed of one method; without one, `failure` says why.

    one, many: an image alone, and many side by side.
    largest: the most images that were generated side by side, though that may not be faster.
    bounded_by: why larger batches were not tried; None if the search ended by itself.
    """

    method: Method
    one: Speed | None = None
    many: Speed | None = None
    largest: int | None = None
    bounded_by: str | None = None
    failure: str | None = None

    @property
    def speeds(self) -> list[Speed]:
        """The speeds that were measured, each once."""
        return [x for x in dict.fromkeys((self.one, self.many)) if x is not None]


def measure_speed(models: Models, method: Method, batch: int, positions: int | None) -> Speed:
    """The speed of one method at one batch size."""
    timed = time_method(models, method, batch, positions)
    return Speed(
        method.name,
        batch,
        timed.samples_per_second,
        timed.seconds_per_sample,
        timed.state_bytes_per_sample,
        timed.estimated,
        timed.compiled,
    )


def measure_outcome(
    models: Models,
    method: Method,
    positions: int | None,
    *,
    batch: int | None = None,
    largest: int = 1_024,
    most_seconds: float = math.inf,
) -> Outcome:
    """Times a method. A refusal is part of the outcome, so that the other methods go on.

    Args:
        positions: as for `time_method`.
        batch: images side by side; None for the best batch of at most `largest`, searched among
            those that are expected to take `most_seconds` a pixel at most.
    """
    largest_timed, bounded_by = batch, None
    try:
        if batch is None:
            time = partial(time_method, models, method, positions=_SEARCH_POSITIONS)
            device = models[method.attention].device
            best = best_batch(time, device, largest=largest, most_seconds=most_seconds)
            batch, largest_timed, bounded_by = best.batch, best.largest_timed, best.bounded_by
        many = measure_speed(models, method, batch, positions)
        one = many if batch == 1 else measure_speed(models, method, 1, positions)
    except (ValueError, MemoryError, RuntimeError) as error:
        if not isinstance(error, ValueError) and not lacks_memory(error):
            raise
        return Outcome(method, failure=" ".join(str(error).split()))
    return Outcome(method, one, many, largest_timed, bounded_by)


def read_environment() -> dict[str, Any]:
    """Versions, device and threads, and the backend that makes the steps of linear attention."""
    device = torch.device(default_device())
    return {**environment(device), "steps_by": stepping_backends(device)[0]}


def _eager(device: torch.device) -> list[Method]:
    return [
        Method(f"linear (eager, {backend})", "linear", "stateful", backend)
        for backend in stepping_backends(device)
    ]


@contextmanager
def _use_backend(model: AutoregressiveTransformer, backend: str) -> Iterator[None]:
    """Within the block this backend runs the model's linear attention."""
    mixers = [module for module in model.modules() if isinstance(module, LinearMixer)]
    try:
        for mixer in mixers:
            mixer.backend = backend
        yield
    finally:
        for mixer in mixers:
            mixer.backend = "auto"
