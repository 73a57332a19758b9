"""Factors of decay between positions, from the logarithms g of the decay of C positions.

Each g is at most 0, and may be -inf. Factors are exp of sums of g, never of differences, so that
none can overflow or become NaN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad


def between(g: Tensor) -> Tensor:
    """(..., C) -> (..., C, C): exp(sum of g_m over j < m <= i), 1 for j >= i."""
    length = g.shape[-1]
    later = g.unsqueeze(-1).expand(*g.shape, length).tril(-1)  # g_m where m > j
    return later.cumsum(-2).exp()


def from_start(g: Tensor) -> Tensor:
    """(..., C) -> (..., C, 1): exp(sum of g_m over m <= i), the decay of the state before them."""
    return g.cumsum(-1).exp().unsqueeze(-1)


def to_end(g: Tensor) -> Tensor:
    """(..., C) -> (..., C, 1): exp(sum of g_m over m > j), the decay of key j up to the end."""
    return from_here(pad(g[..., 1:], (0, 1))).exp().unsqueeze(-1) if g.shape[-1] else g[..., None]


def across(g: Tensor) -> Tensor:
    """(..., C) -> (..., 1): exp(sum of g), the decay of the state before them up to the end."""
    return g.sum(-1, keepdim=True).exp()


def exp_without_subnormals(x: Tensor) -> Tensor:
    """exp(x), 0 where products with it could be subnormal, which CPUs multiply slowly."""
    smallest = math.log(torch.finfo(x.dtype).tiny * 2**24)
    return x.masked_fill(x < smallest, -math.inf).exp()


def from_here(x: Tensor) -> Tensor:
    """(..., C) -> (..., C): at m, the sum of x_i over i >= m."""
    return x.flip(-1).cumsum(-1).flip(-1)


def until_here(x: Tensor) -> Tensor:
    """(..., C) -> (..., C): at m, the sum of x_j over j < m."""
    return torch.cumsum(pad(x, (1, 0)), -1)[..., :-1]
