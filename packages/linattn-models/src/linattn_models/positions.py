"""Vectors of positions, added to the inputs of the first layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from linattn_models.validation import one_of

POSITIONS = ("learned", "sinusoidal")


class Positions(nn.Module):
    """A table with one vector a position.

    Args:
        kind: "learned" (a parameter) or "sinusoidal" (fixed; saved with the model, too).
        max_length: rows of the table.
        embed_dim: E.
        std: root mean square of the entries at the start.

    Raises:
        ValueError: an unknown kind.
    """

    table: Tensor  # (max_length, E)

    def __init__(self, kind: str, max_length: int, embed_dim: int, std: float) -> None:
        super().__init__()
        one_of("positions", kind, POSITIONS)
        if kind == "learned":
            self.table = nn.Parameter(torch.randn(max_length, embed_dim) * std)
        else:
            # Entries of sines and cosines have a root mean square of sqrt(1/2).
            table = sinusoids(max_length, embed_dim) * (std * math.sqrt(2))
            self.register_buffer("table", table)

    def forward(self, length: int) -> Tensor:
        """The vectors of the first `length` positions: (length, E)."""
        return self.table[:length]

    def at(self, position: int | Tensor) -> Tensor:
        """The vector of one position, (E,), or of each row's own, (B, E)."""
        return self.table[position]


def sinusoids(max_length: int, embed_dim: int) -> Tensor:
    """Sines and cosines of geometrically spaced wavelengths.

        table[p, 2 i] = sin(p / 10000^(2 i / E))        table[p, 2 i + 1] = cos(the same)

    Returns:
        (max_length, E) float32.
    """
    position = torch.arange(max_length, dtype=torch.float64).unsqueeze(1)
    exponent = torch.arange(0, embed_dim, 2, dtype=torch.float64) / embed_dim
    angle = position / 10000.0**exponent  # (max_length, ceil(E / 2))
    table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    return table[:, :embed_dim].float()
