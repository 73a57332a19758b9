"""Rotary positions (RoFormer, arXiv 2104.09864): queries and keys turned by angles of positions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.basics.validation import from_fields, in_range, instance

BASE = 10_000.0


class Rotation(NamedTuple):
    """Cosines and sines of the angles of positions (...): (..., 1, D / 2) each."""

    cosine: Tensor
    sine: Tensor


@dataclass(frozen=True)
class Llama3Scaling:
    """Llama 3's scaling of the frequencies, for sequences longer than those of the training.

    Pairs that turn at most `low_freq_factor` times within `original_max_length` positions turn
    `factor` times slower, those that turn at least `high_freq_factor` times as before, and those
    between them by a mean of both.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int

    def __post_init__(self) -> None:
        for field in fields(self):
            in_range(field.name, getattr(self, field.name), 1e-6, math.inf)
        if not self.low_freq_factor < self.high_freq_factor:
            wanted = f"more than low_freq_factor={self.low_freq_factor}"
            raise ValueError(expected("high_freq_factor", wanted, self.high_freq_factor))

    @classmethod
    def read(cls, value: object) -> Llama3Scaling | None:
        """The scaling itself, or that of a mapping of its fields; None for None."""
        if isinstance(value, Mapping):
            return from_fields(cls, "rotary_scaling", value)
        if value is not None:
            instance("rotary_scaling", value, cls)
        return value  # type: ignore[return-value]

    def __call__(self, frequencies: Tensor) -> Tensor:
        """The scaled frequencies (D / 2,), in radians per position."""
        turns = self.original_max_length / (2 * math.pi) * frequencies
        band = self.high_freq_factor - self.low_freq_factor
        share = ((turns - self.low_freq_factor) / band).clamp(0, 1)
        return torch.lerp(frequencies / self.factor, frequencies, share)


def rotation_at(
    positions: Tensor,
    head_dim: int,
    base: float = BASE,
    dtype: torch.dtype = torch.float32,
    scaling: Llama3Scaling | None = None,
) -> Rotation:
    """The rotation of heads at positions (...).

    Pair i turns by position * base^(-2 i / D), if not scaled. The angles are float64 where the
    device has it, so that far positions are as exact as near ones.
    """
    return rotation_by(positions, frequencies_of(head_dim, base, scaling, positions.device), dtype)


def frequencies_of(
    head_dim: int, base: float, scaling: Llama3Scaling | None, device: torch.device
) -> Tensor:
    """The radians (D / 2,) by which each pair of a head turns from one position to the next."""
    exact = torch.float32 if device.type == "mps" else torch.float64
    frequencies = base ** (-torch.arange(0, head_dim, 2, dtype=exact, device=device) / head_dim)
    return frequencies if scaling is None else scaling(frequencies)


def rotation_by(
    positions: Tensor, frequencies: Tensor, dtype: torch.dtype = torch.float32
) -> Rotation:
    """The rotation at positions (...) by these frequencies."""
    angles = positions.to(frequencies.dtype).unsqueeze(-1) * frequencies  # (..., D / 2)
    angles = angles.unsqueeze(-2)
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Turns each pair (x[i], x[i + D / 2]) of heads (..., heads, D); keeps the dtype of x."""
    first, second = x.chunk(2, dim=-1)
    cosine, sine = rotation
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    return torch.cat([half.to(x.dtype) for half in turned], dim=-1)
