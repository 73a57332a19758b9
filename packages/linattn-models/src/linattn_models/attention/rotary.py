"""Rotary positions (RoFormer, arXiv 2104.09864): queries and keys turned by angles of positions."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BASE = 10_000.0


class Rotation(NamedTuple):
    """Cosines and sines of the angles of positions (...): (..., 1, D / 2) each."""

    cosine: Tensor
    sine: Tensor


def rotation_at(
    positions: Tensor, head_dim: int, base: float = BASE, dtype: torch.dtype = torch.float32
) -> Rotation:
    """The rotation of heads at positions (...).

    Pair i turns by position * base^(-2 i / D). The angles are float64 where the device has it, so
    that far positions are as exact as near ones.
    """
    exact = torch.float32 if positions.device.type == "mps" else torch.float64
    pairs = torch.arange(0, head_dim, 2, dtype=exact, device=positions.device)
    angles = positions.to(exact).unsqueeze(-1) * base ** (-pairs / head_dim)  # (..., D / 2)
    angles = angles.unsqueeze(-2)
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turns each pair (x[i], x[i + D / 2]) of heads (..., heads, D); keeps the dtype of x."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = rotation
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat(turned, dim=-1).to(x.dtype)
