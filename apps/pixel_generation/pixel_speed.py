"""How fast images come out, by each of the three ways to generate them.

linear            an RNN: the state has one size, and every pixel costs the same
stateful-softmax  keys and values of all pixels so far are kept: a pixel costs more the later it is
softmax           nothing is kept, so each pixel runs all those before it again: what plain
                  transformers did, and what the paper's factor of thousands is measured against
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pixel_presets import Attention
from tqdm import tqdm

from linattn_models import AutoregressiveTransformer, generation_throughput

MethodName = Literal["linear", "stateful-softmax", "softmax"]
# For each method, the attention of its model and how that model is run.
METHODS: dict[MethodName, tuple[Attention, str]] = {
    "linear": ("linear", "stateful"),
    "stateful-softmax": ("softmax", "stateful"),
    "softmax": ("softmax", "rerun"),
}


@dataclass(frozen=True)
class Speed:
    """One method at one batch size.

    estimated: some positions were timed, and the others interpolated between them.
    compiled: the steps were those of a compiled decoder, and not of the model in PyTorch.
    """

    method: MethodName
    batch: int
    images_per_second: float
    seconds_per_image: float
    state_bytes_per_image: int
    estimated: bool
    compiled: bool


def measure(
    models: Mapping[Attention, AutoregressiveTransformer],
    batches: Sequence[int],
    positions: int | None,
    methods: Sequence[MethodName] = tuple(METHODS),
) -> list[Speed]:
    """The speed of each method at each batch size.

    Args:
        models: a model for each attention, alike but for it. Speed does not depend on the weights.
        batches: numbers of images made side by side.
        positions: how many pixels of an image are timed, spread over it; None for all, one after
            the other, save that rerunning is always timed at some (32).
        methods: which of METHODS.
    """
    cases = [(method, batch) for batch in batches for method in methods]
    return [
        _measure_one(models, method, batch, positions)
        for method, batch in tqdm(cases, desc="timing", unit="case")
    ]


def how_it_ran(environment: Mapping[str, Any], speeds: Sequence[Speed]) -> str:
    """A line for below a table: versions, threads, and what of linear attention was native."""
    first = (
        f"torch {environment['torch']}, {environment['device']}, {environment['threads']} threads"
    )
    native = environment["backends"][0]
    if native == "reference":
        return f"{first}; linear attention in plain torch."
    compiled = dict.fromkeys(speed.method for speed in speeds if speed.compiled)
    drawn = f", which also compiled the decoder of: {', '.join(compiled)}" if compiled else ""
    return f"{first}; linear attention by the backend {native}{drawn}."


def _measure_one(
    models: Mapping[Attention, AutoregressiveTransformer],
    method: MethodName,
    batch: int,
    positions: int | None,
) -> Speed:
    attention, way = METHODS[method]
    steps = 32 if positions is None and way == "rerun" else positions
    model = models[attention].eval()
    timed = generation_throughput(model, batch=batch, method=way, steps=steps)
    return Speed(
        method,
        batch,
        timed.samples_per_second,
        timed.seconds_per_sample,
        timed.state_bytes_per_sample,
        timed.estimated,
        timed.compiled,
    )
