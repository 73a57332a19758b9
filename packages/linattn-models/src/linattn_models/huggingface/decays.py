"""The decay of linear attention in a model of transformers: a factor of each head, not trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from linattn_core.errors import expected, quote

Decay: TypeAlias = str | float | Sequence[float]


def read_decay(decay: Any) -> str | float | list[float] | None:
    """The decay as a value of JSON; refuses what are no factors."""
    if decay is None:
        return None
    if isinstance(decay, str) and decay == "fixed":
        return decay
    values = decay.tolist() if hasattr(decay, "tolist") else decay
    factors = values if isinstance(values, list | tuple) else [values]
    for factor in factors:
        is_number = isinstance(factor, int | float) and not isinstance(factor, bool)
        if not is_number or not 0 < factor <= 1:
            wanted = "'fixed', or factors above 0 and at most 1, one or one for each head"
            raise ValueError(expected("decay", wanted, quote(factor)))
    return [*map(float, factors)] if factors is values else float(values)


def log_decay(decay: Decay | None, heads: int, like: Tensor) -> Tensor | None:
    """The `log_decay` (H_kv,) of `linear_attention`, on the device of `like`.

    "fixed" is 1 - 2^(-5 - h) for head h, as in `Linear`.
    """
    if decay is None:
        return None
    if decay == "fixed":
        factors = [1 - 2.0 ** (-5 - head) for head in range(heads)]
    elif isinstance(decay, float):
        factors = [decay] * heads
    else:
        factors = [float(factor) for factor in decay]
    if len(factors) != heads:
        wanted = f"one factor, or one for each of {heads} heads of keys"
        raise ValueError(expected("decay", wanted, f"{len(factors)} factors"))
    dtype = torch.promote_types(like.dtype, torch.float32)
    return torch.tensor([math.log(x) for x in factors], dtype=dtype, device=like.device)
