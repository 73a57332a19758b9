"""The ways to generate images that are compared, each an attention and how its model is run.

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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from linattn_core import LinearAttentionState, explain
from linattn_lab.throughput import Throughput, generation_throughput
from linattn_models import AutoregressiveTransformer
from linattn_models.attention import LinearMixer
from pixels.presets import Attention

MethodName = Literal["linear", "linear-eager", "stateful-softmax", "softmax", "lsh-1", "lsh-4"]
Models = Mapping[Attention, AutoregressiveTransformer]

# Positions of a rerunning method where all were asked for.
_RERUN_POSITIONS = 32


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


def methods_named(names: Sequence[MethodName], device: torch.device) -> list[Method]:
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
    with _attending_by(model, method.backend or "auto"):
        return generation_throughput(
            model, batch=batch, method=method.way, decoder=decoder, steps=steps
        )


def _eager(device: torch.device) -> list[Method]:
    return [
        Method(f"linear (eager, {backend})", "linear", "stateful", backend)
        for backend in stepping_backends(device)
    ]


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
