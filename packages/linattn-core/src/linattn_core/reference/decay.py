"""Factors of decay between positions. Sums of logarithms, never differences: none can overflow.

With g the logarithms of the decay of C positions, at most 0 each, -inf included.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def between(g: Tensor) -> Tensor:
    """(..., C) -> (..., C, C): exp(sum of g_m over j < m <= i), 1 for j >= i."""
    length = g.shape[-1]
    later = g.unsqueeze(-1).expand(*g.shape, length).tril(-1)  # g_m where m > j
    return later.cumsum(-2).exp()


def from_start(g: Tensor) -> Tensor:
    """(..., C) -> (..., C, 1): exp(sum of g_m over m <= i), the decay of an earlier state."""
    return g.cumsum(-1).exp().unsqueeze(-1)


def to_end(g: Tensor) -> Tensor:
    """(..., C) -> (..., C, 1): exp(sum of g_m over m > j), what the end has of position j."""
    return from_here(pad(g[..., 1:], (0, 1))).exp().unsqueeze(-1) if g.shape[-1] else g[..., None]


def across(g: Tensor) -> Tensor:
    """(..., C) -> (..., 1): exp(sum of g), the decay of an earlier state at the end."""
    return g.sum(-1, keepdim=True).exp()


def from_here(x: Tensor) -> Tensor:
    """(..., C): the sum of x_i over i >= m."""
    return x.flip(-1).cumsum(-1).flip(-1)


def until_here(x: Tensor) -> Tensor:
    """(..., C): the sum of x_j over j < m."""
    return torch.cumsum(pad(x, (1, 0)), -1)[..., :-1]
