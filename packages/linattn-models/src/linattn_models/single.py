"""Layers applied to one vector a row, past `nn.Module`'s own calls and look-ups.

At one sequence a time these would cost a tenth of a whole decoding step. The price: forward hooks
on the layers do not run in a step, and a layer put in another's place must hold its own `weight`
and `bias`.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# The fewest outputs that are worth a thread of their own.
_OUTPUTS_A_THREAD = 64


def linear(layer: Any, x: Tensor) -> Tensor:
    """An `nn.Linear` of (B, inputs)."""
    weights = layer._parameters
    weight, bias = weights["weight"], weights["bias"]  # (outputs, inputs), (outputs,)
    parts = _parts(x, weight.shape[0])
    if parts == 1:
        return F.linear(x, weight, bias)
    return _side_by_side(x, weight.view(parts, -1, weight.shape[1]).transpose(1, 2), bias)


def widening(layer: Any, x: Tensor) -> Tensor:
    """A `WideningLinear` of (B, inputs)."""
    weights = layer._parameters
    weight, bias = weights["weight"], weights["bias"]  # (inputs, outputs), (outputs,)
    parts = _parts(x, weight.shape[1])
    if parts == 1:
        return torch.addmm(bias, x, weight)
    return _side_by_side(x, weight.view(weight.shape[0], parts, -1).transpose(0, 1), bias)


def norm(layer: Any, x: Tensor) -> Tensor:
    """An `nn.LayerNorm` of (B, E)."""
    weights = layer._parameters
    return F.layer_norm(x, layer.normalized_shape, weights["weight"], weights["bias"], layer.eps)


def _parts(x: Tensor, outputs: int) -> int:
    """Into how many groups of outputs a layer is cut, so that every thread reads some weights.

    One vector times a matrix is bound by reading the matrix, and BLAS does that on one thread.
    """
    alone = x.shape[0] == 1 and x.dtype == torch.float32 and x.is_cpu
    if not alone or outputs < 2 * _OUTPUTS_A_THREAD or torch.compiler.is_compiling():
        return 1
    return math.gcd(torch.get_num_threads(), outputs // _OUTPUTS_A_THREAD, outputs)


def _side_by_side(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W + b of one vector (1, inputs), W as (parts, inputs, outputs / parts)."""
    parts, inputs, outputs = weight.shape
    y = torch.baddbmm(bias.view(parts, 1, outputs), x.expand(parts, 1, inputs), weight)
    return y.view(1, parts * outputs)
