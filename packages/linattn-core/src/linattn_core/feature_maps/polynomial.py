"""Exact finite expansions: the degree-2 polynomial kernel and the second-order exponential."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from linattn_core.feature_maps.base import FeatureMap
from linattn_core.state import accumulation_dtype


def _degree_two(x: Tensor) -> Tensor:
    """The D (D + 1) / 2 monomials whose inner product is (x . y)^2, in float32 at least."""
    x = x.to(accumulation_dtype(x.dtype))  # squares easily overflow float16
    dim = x.shape[-1]
    row, column = torch.triu_indices(dim, dim, device=x.device)
    # Off the diagonal, x_i x_j represents two equal terms of the square: hence sqrt(2).
    weight = torch.full(row.shape, math.sqrt(2.0), dtype=x.dtype, device=x.device)
    return x[..., row] * x[..., column] * weight.masked_fill(row == column, 1.0)


class Polynomial(FeatureMap):
    """phi(q) . phi(k) = (q . k)^2, exactly, with F = D (D + 1) / 2.

    The polynomial kernel of degree 2 (section 3.2.1 of the paper), whose features are the
    symmetric products. Cost: O(N D^2 M).
    """

    def queries(self, x: Tensor) -> Tensor:
        return _degree_two(x)

    def feature_dim(self, head_dim: int) -> int:
        return head_dim * (head_dim + 1) // 2


class Taylor(FeatureMap):
    """phi(q) . phi(k) = 1 + s + s^2 / 2 with s = q . k / sqrt(D): exp(s) to second order.

    Always positive (its minimum is 1/2), so that denominators cannot vanish.
    F = 1 + D + D (D + 1) / 2.
    """

    def queries(self, x: Tensor) -> Tensor:
        # q . k / sqrt(D): each side is divided by the root of sqrt(D).
        x = x.to(accumulation_dtype(x.dtype)) / x.shape[-1] ** 0.25
        return torch.cat((x.new_ones(*x.shape[:-1], 1), x, _degree_two(x) / math.sqrt(2.0)), -1)

    def feature_dim(self, head_dim: int) -> int:
        return 1 + head_dim + head_dim * (head_dim + 1) // 2
