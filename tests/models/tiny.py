"""Models small enough to run hundreds of times."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    DecodingState,
    Head,
    Linear,
    MixtureOfLogistics,
    Transformer,
    TransformerConfig,
)
from linattn_models.attention import Attention
from linattn_models.state import KeyValueCache

ATTENTIONS = ("linear", "softmax")
STEPPING = (*ATTENTIONS, "windowed")
MAX_LENGTH = 9
HEADS: list[Head] = [Categorical(7), MixtureOfLogistics(2, 1, 17), MixtureOfLogistics(2, 3, 8)]

heads = pytest.mark.parametrize("head", HEADS, ids=["categorical", "gray", "color"])


def tiny_config(attention: Attention | str = "linear", **fields: Any) -> TransformerConfig:
    """Fields of `Linear` are its own; other attentions ignore them."""
    names = {field.name for field in fields_of(Linear)} & fields.keys()
    own = {name: fields.pop(name) for name in names}
    sizes = {"num_layers": 2, "num_heads": 2, "head_dim": 4, "ffn_dim": 12}
    if attention == "windowed":
        own = {"window_size": 3, **own}
    chosen = Linear(**own) if attention in ("linear", "windowed") else attention
    return TransformerConfig(**{**sizes, "attention": chosen, **fields})


def tiny_transformer(attention: Attention | str = "linear", **fields: Any) -> Transformer:
    """In float64, where equalities that hold to rounding hold to 1e-9."""
    return Transformer(tiny_config(attention, **fields)).double().eval()


def tiny_model(
    attention: Attention | str = "linear",
    head: Head | int = 7,
    positions: str = "learned",
    **fields: Any,
) -> AutoregressiveTransformer:
    config = tiny_config(attention, **fields)
    return AutoregressiveTransformer(config, head, MAX_LENGTH, positions).double().eval()


def vectors(*shape: int) -> Tensor:
    """(*shape, E), as wide as the models."""
    return torch.randn(*shape, 8, dtype=torch.float64)


def random_tokens(model: AutoregressiveTransformer, batch: int, length: int) -> Tensor:
    extra = () if model.head.channels == 1 else (model.head.channels,)
    return torch.randint(model.head.levels, (batch, length, *extra))


def ints(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.int64)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def greedy(model: Any, **options: Any) -> Any:
    """The likeliest tokens."""
    return model.generate(temperature=0.0, **options)


def same_row(state: DecodingState, row: int, alone: DecodingState) -> None:
    """A row of a state is the state of one sequence, as far as it can be seen."""
    seen = int(alone.position)
    assert int(state.cursor.rows(state.batch)[row]) == seen
    for layer, own in zip(state.layers, alone.layers, strict=True):
        for together, apart in zip(layer, own, strict=True):
            part = slice(seen) if isinstance(layer, KeyValueCache) else slice(None)
            torch.testing.assert_close(together[row, :, part], apart[0, :, part])


def same_rows(state: DecodingState, other: DecodingState) -> None:
    """Each row of a state is that of the other one, as far as it can be seen."""
    for row, alone in enumerate(other.split(1)):
        same_row(state, row, alone)


class Loss(nn.Module):
    """A model's loss as a module: DDP synchronizes where its own `forward` is called."""

    def __init__(self, model: AutoregressiveTransformer) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch: Tensor) -> Tensor:
        return self.model.loss(*batch)
