"""Layers applied to one vector a row, past `nn.Module`'s own calls and look-ups.

At one sequence a time these would cost a tenth of a whole decoding step. The price: forward hooks
on the layers do not run in a step, and a layer put in another's place must hold its own `weight`
and `bias`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def linear(layer: Any, x: Tensor) -> Tensor:
    """An `nn.Linear` of (B, inputs)."""
    weights = layer._parameters
    return F.linear(x, weights["weight"], weights["bias"])


def widening(layer: Any, x: Tensor) -> Tensor:
    """A `WideningLinear` of (B, inputs)."""
    weights = layer._parameters
    return torch.addmm(weights["bias"], x, weights["weight"])


def norm(layer: Any, x: Tensor) -> Tensor:
    """An `nn.LayerNorm` of (B, E)."""
    weights = layer._parameters
    return F.layer_norm(x, layer.normalized_shape, weights["weight"], weights["bias"], layer.eps)
