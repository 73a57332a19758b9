"""How fast images come out, by each of the ways to generate them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pixel_methods import Method, stepping_backends
from pixel_presets import Attention
from pixel_runs import default_device
from tqdm import tqdm

from linattn_models import AutoregressiveTransformer, Throughput, generation_throughput
from linattn_models.attention import LinearMixer
from linattn_models.training.runtime import environment

Models = Mapping[Attention, AutoregressiveTransformer]

# Positions of a rerunning method where every one was asked for.
_RERUN_POSITIONS = 32


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


def measure(
    models: Models, batches: Sequence[int], positions: int | None, methods: Sequence[Method]
) -> list[Speed]:
    """The speed of each method at each batch size.

    Args:
        models: a model for each attention, alike but for it. Speed does not depend on the weights.
        batches: numbers of images made side by side.
        positions: how many pixels of an image are timed, spread over it; None for all, one after
            the other, save that rerunning is always timed at some (32).
        methods: what to time.
    """
    cases = [(method, batch) for batch in batches for method in methods]
    return [
        speed_of(method, time_method(models, method, batch, positions), batch)
        for method, batch in tqdm(cases, desc="timing", unit="case")
    ]


def time_method(models: Models, method: Method, batch: int, positions: int | None) -> Throughput:
    """What `batch` images side by side take; positions as for `measure`."""
    steps = _RERUN_POSITIONS if positions is None and method.way == "rerun" else positions
    model = models[method.attention].eval()
    decoder = "auto" if method.backend is None else "eager"
    with _attending_by(model, method.backend or "auto"):
        return generation_throughput(
            model, batch=batch, method=method.way, decoder=decoder, steps=steps
        )


def speed_of(method: Method, timed: Throughput, batch: int) -> Speed:
    """What a table needs of a measurement."""
    return Speed(
        method.name,
        batch,
        timed.samples_per_second,
        timed.seconds_per_sample,
        timed.state_bytes_per_sample,
        timed.estimated,
        timed.compiled,
    )


def where_it_runs() -> dict[str, Any]:
    """Versions, device and threads, and the backend that makes the steps of linear attention."""
    device = default_device()
    return {**environment(device), "steps_by": stepping_backends(device)[0]}


def how_it_ran(where: Mapping[str, Any], speeds: Sequence[Speed]) -> str:
    """A line for below a table: versions, threads, and what of linear attention was native."""
    first = f"torch {where['torch']}, {where['device']}, {where['threads']} threads"
    native = where["steps_by"]
    if native == "reference":
        return f"{first}; linear attention in plain torch."
    compiled = dict.fromkeys(speed.method for speed in speeds if speed.compiled)
    drawn = f", which also compiled the decoder of: {', '.join(compiled)}" if compiled else ""
    return f"{first}; linear attention by the backend {native}{drawn}."


@contextmanager
def _attending_by(model: AutoregressiveTransformer, backend: str) -> Iterator[None]:
    """Within the block this backend runs the model's linear attention."""
    mixers = [module for module in model.modules() if isinstance(module, LinearMixer)]
    try:
        for mixer in mixers:
            mixer.backend = backend
        yield
    finally:
        for mixer in mixers:
            mixer.backend = "auto"
