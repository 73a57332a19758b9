"""The ways to generate images that are compared, each an attention and how its model is run.

linear            an RNN: the state has one size, and every pixel costs the same
linear-eager      the same by the model's own steps, with each backend of the operator in turn
stateful-softmax  keys and values of all pixels so far are kept: a pixel costs more the later it is
softmax           nothing is kept, so each pixel runs all those before it again: what plain
                  transformers did, and what the paper's factor of thousands is measured against
lsh-1, lsh-4      Reformer's attention in 1 and 4 rounds of hashing. What a pixel sees depends on
                  how all those before it sort, so nothing can be kept and the prefix is run again
                  (one that is no longer than a chunk is a single chunk)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pixel_presets import Attention

from linattn_core import LinearAttentionState, explain

MethodName = Literal["linear", "linear-eager", "stateful-softmax", "softmax", "lsh-1", "lsh-4"]


@dataclass(frozen=True)
class Method:
    """One way to generate.

    Attributes:
        name: in tables.
        attention: of the model.
        way: "stateful" or "rerun", as for the model's `generate`.
        backend: what runs linear attention in the model's own steps; None for the fastest there
            is, with a compiled decoder where one is to be had.
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
    """Those that make a step of linear attention on this device, the one that is taken first."""
    vector = torch.zeros(1, 1, 32, device=device)  # (B, H, D)
    state = LinearAttentionState.zeros(1, 1, 32, 32, device=device)
    answers = explain(vector, vector, vector, state)
    return [name for name, answer in answers.items() if answer == "accepts"]


def _eager(device: torch.device) -> list[Method]:
    return [
        Method(f"linear (eager, {backend})", "linear", "stateful", backend)
        for backend in stepping_backends(device)
    ]
