"""Positional encodings, added to the inputs of the first layer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.basics.validation import one_of

POSITIONS = ("learned", "sinusoidal", "rotary", "none")
# What adds no vectors: "rotary" turns queries and keys inside the blocks.
WITHOUT_VECTORS = ("rotary", "none")
# Root mean square of the initial vectors, also of tokens: small, so that early updates can change
# them a lot.
STD = 0.02
# The fewest rows of a table that is made for a compiled decoder.
_FEWEST_ROWS = 1024


class Positions(nn.Module):
    """One vector for each position.

    Args:
        kind: "learned" (a table of max_length rows), "sinusoidal" (any position); "rotary" and
            "none" add nothing.
        max_length: rows of the table. With "sinusoidal" the table is saved with the model, and
            vectors of later positions are computed when needed. None for no table.
        embed_dim: E.
    """

    table: Tensor  # (max_length, E); None where there is none

    def __init__(self, kind: str, max_length: int | None, embed_dim: int) -> None:
        super().__init__()
        one_of("positions", kind, POSITIONS)
        if kind == "learned" and max_length is None:
            advice = "a learned table ends; 'sinusoidal', 'rotary' and 'none' do not"
            raise ValueError(expected("max_length", "a number of positions", None, advice))
        self.kind = kind
        self.embed_dim = embed_dim
        # Entries of sines and cosines have a root mean square of sqrt(1/2).
        self.scale = STD * math.sqrt(2)
        self._computed: Tensor | None = None
        if kind == "learned" and max_length is not None:
            self.table = nn.Parameter(torch.randn(max_length, embed_dim) * STD)
        elif kind == "sinusoidal" and max_length is not None:
            self.register_buffer("table", sinusoids(max_length, embed_dim) * self.scale)
        else:
            self.register_buffer("table", None)

    @property
    def limit(self) -> int | None:
        """The number of positions; None for no limit."""
        return len(self.table) if self.kind == "learned" else None

    def forward(self, vectors: Tensor, start: int | Tensor = 0) -> Tensor:
        """The vectors (B, N, E) plus those of their positions.

        Args:
            vectors: (B, N, E).
            start: the position of the first vector: an int for all rows, or (B,) int64.
        """
        if self.kind in WITHOUT_VECTORS:
            return vectors
        end = start + vectors.shape[1]
        if isinstance(start, int) and self.table is not None and end <= len(self.table):
            return vectors + self.table[start:end].to(vectors.dtype)
        first = torch.as_tensor(start, device=vectors.device).unsqueeze(-1)
        places = first + torch.arange(vectors.shape[1], device=vectors.device)
        if self.kind == "learned":  # positions past the end are padding
            places = places.clamp(max=len(self.table) - 1)
        return vectors + self._rows(places, vectors)

    def at(self, vectors: Tensor, position: int | Tensor) -> Tensor:
        """The vectors (..., E) plus those of `position`: an int for all, or (...) int64."""
        if self.kind in WITHOUT_VECTORS:
            return vectors
        if isinstance(position, Tensor):
            return vectors + self._rows(position.to(vectors.device), vectors)
        if self.table is not None and position < len(self.table):
            return vectors + self.table[position].to(vectors.dtype)
        place = torch.full((), position, dtype=torch.int64, device=vectors.device)
        return vectors + self._rows(place, vectors)

    def rows(self, least: int, like: Tensor) -> Tensor:
        """A table (rows, E) of at least `least` rows, learned or of sinusoids; cached."""
        if self.table is not None and (self.kind == "learned" or len(self.table) >= least):
            return self.table
        computed = self._computed
        if computed is None or len(computed) < least or computed.device != like.device:
            count = 1 << (max(least, _FEWEST_ROWS) - 1).bit_length()  # powers of 2: few tables
            computed = self._computed = self._rows(torch.arange(count, device=like.device), like)
        return computed

    def _rows(self, places: Tensor, like: Tensor) -> Tensor:
        """The vectors (..., E) of positions (...), in the dtype of `like`."""
        if self.kind == "learned":
            return self.table[places]
        return (sinusoids_at(places, self.embed_dim) * self.scale).to(like.dtype)


def sinusoids(max_length: int, embed_dim: int) -> Tensor:
    """Sines and cosines of geometrically spaced wavelengths.

        table[p, 2 i] = sin(p / 10000^(2 i / E))        table[p, 2 i + 1] = cos(the same)

    Returns:
        (max_length, E) float32.
    """
    return sinusoids_at(torch.arange(max_length), embed_dim)


def sinusoids_at(positions: Tensor, embed_dim: int) -> Tensor:
    """The rows of `sinusoids` at these positions (...): (..., E) float32."""
    exponent = torch.arange(0, embed_dim, 2, dtype=torch.float64, device=positions.device)
    angle = positions.double().unsqueeze(-1) / 10000.0 ** (exponent / embed_dim)
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(-2)  # (..., E or E + 1)
    return waves[..., :embed_dim].float()
