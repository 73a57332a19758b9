"""How fast images come out, by each of the three ways to generate them.

linear            an RNN: the state has one size, and every pixel costs the same
stateful-softmax  keys and values of all pixels so far are kept: a pixel costs more the later it is
softmax           nothing is kept, so each pixel runs all those before it again: what plain
                  transformers did, and what the paper's factor of thousands is measured against
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

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
    """

    method: MethodName
    batch: int
    images_per_second: float
    seconds_per_image: float
    state_bytes_per_image: int
    estimated: bool


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
    )
