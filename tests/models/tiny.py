"""Models small enough to run hundreds of times."""

from __future__ import annotations

from dataclasses import fields as fields_of
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_models import (
    AutoregressiveTransformer,
    Categorical,
    Head,
    Linear,
    MixtureOfLogistics,
    Transformer,
    TransformerConfig,
)
from linattn_models.attention import Attention

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
