"""Layers applied to one vector a row, past `nn.Module`'s own calls and look-ups.

At one sequence a time these are a good part of a whole decoding step. A layer that has hooks, or
that somebody put in another's place (quantized, adapted), is called as usual.

Few vectors times a matrix are bound by reading the matrix, which BLAS leaves to one thread. So the
matrices are cut here into one part for each thread, as views, and multiplied as a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module

from linattn_models.projection import WideningLinear

# The fewest outputs that are worth a thread of their own, and the most rows that gain by it.
_OUTPUTS_A_THREAD = 64
_ROWS = 128


def linear(layer: Any, x: Tensor) -> Tensor:
    """An `nn.Linear` of (B, inputs)."""
    if not plain(layer, nn.Linear):
        return cast(Tensor, layer(x))
    weight, bias = _weights(layer)  # (outputs, inputs), (outputs,)
    parts = _parts(x, weight.shape[0]) if x.shape[0] == 1 else 1
    if parts == 1:
        return F.linear(x, weight, bias)
    return _columns(x, weight.view(parts, -1, weight.shape[1]).transpose(1, 2), bias).view(1, -1)


def widening(layer: Any, x: Tensor) -> Tensor:
    """A `WideningLinear` of (B, inputs)."""
    if not plain(layer, WideningLinear):
        return cast(Tensor, layer(x))
    weight, bias = _weights(layer)  # (inputs, outputs), (outputs,)
    parts = _parts(x, weight.shape[1]) if x.shape[0] == 1 else 1
    if parts == 1:
        return torch.addmm(bias, x, weight)
    return _columns(x, _column_parts(weight, parts), bias).view(1, -1)


def feed_forward(
    expand: Any, activation: Callable[[Tensor], Tensor], contract: Any, x: Tensor
) -> Tensor:
    """A `WideningLinear`, an activation and an `nn.Linear` of (B, inputs)."""
    if not (plain(expand, WideningLinear) and plain(contract, nn.Linear)):
        return cast(Tensor, contract(activation(expand(x))))
    (weight, bias), (back, shift) = _weights(expand), _weights(contract)
    parts = _parts(x, weight.shape[1])
    if parts == 1:
        return F.linear(activation(torch.addmm(bias, x, weight)), back, shift)
    hidden = activation(_columns(x, _column_parts(weight, parts), bias))  # (parts, B, hidden/parts)
    if x.shape[0] == 1:
        return linear(contract, hidden.view(1, -1))
    # Hidden vectors stay in parts, and each is multiplied by its own rows of the second matrix.
    sums = torch.bmm(hidden, back.t().view(parts, -1, back.shape[0]))  # (parts, B, outputs)
    return sums.sum(0).add_(shift)


def norm(layer: Any, x: Tensor) -> Tensor:
    """An `nn.LayerNorm` of (B, E)."""
    if not plain(layer, nn.LayerNorm):
        return cast(Tensor, layer(x))
    weight, bias = _weights(layer)
    return F.layer_norm(x, layer.normalized_shape, weight, bias, layer.eps)


def plain(layer: Any, kind: type[nn.Module]) -> bool:
    """Whether calling the layer would do nothing but its arithmetic with weight and bias."""
    return type(layer) is kind and layer._parameters.get("bias") is not None and not hooked(layer)


def hooked(layer: Any) -> bool:
    """Whether calling the layer runs somebody's hooks too."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or module._global_forward_hooks
        or module._global_forward_pre_hooks
    )


def _weights(layer: Any) -> tuple[Tensor, Tensor]:
    parameters = layer._parameters
    return parameters["weight"], parameters["bias"]


def _parts(x: Tensor, outputs: int) -> int:
    """Into how many groups of outputs a layer is cut, at best one for each thread."""
    fitting = x.shape[0] <= _ROWS and x.dtype == torch.float32 and x.is_cpu
    if not fitting or outputs < 2 * _OUTPUTS_A_THREAD or torch.compiler.is_compiling():
        return 1
    return math.gcd(torch.get_num_threads(), outputs // _OUTPUTS_A_THREAD, outputs)


def _column_parts(weight: Tensor, parts: int) -> Tensor:
    """(inputs, outputs) as (parts, inputs, outputs / parts), a view."""
    return weight.view(weight.shape[0], parts, -1).transpose(0, 1)


def _columns(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x W + b, with W and the result cut by outputs: (parts, B, outputs / parts)."""
    parts = weight.shape[0]
    return torch.baddbmm(bias.view(parts, 1, -1), x.expand(parts, *x.shape), weight)
