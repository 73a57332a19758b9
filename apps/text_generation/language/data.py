"""Pieces of a text of tokens: at random places to learn from, spread evenly to be evaluated."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from language.tokens import Array
from linattn_core.errors import expected


@dataclass(frozen=True)
class Windows:
    """Pieces of a text at random places: the piece at index i depends on the seed and i alone.

    Args:
        text: (length,) tokens, in memory or on disk.
        seed: decides the places.
        examples: how many pieces there are.
        length: tokens of each.
    """

    text: Array
    seed: int
    examples: int
    length: int

    def __post_init__(self) -> None:
        if not 2 <= self.length <= len(self.text):
            wanted = f"2 to {len(self.text):,}, the tokens to learn from"
            advice = "give more text, or pieces of fewer tokens"
            raise ValueError(expected("--length", wanted, self.length, advice))

    def __len__(self) -> int:
        return self.examples

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """The pieces at `indices` (B,): "tokens", (B, length) int64."""
        return {"tokens": torch.stack([self._piece(index) for index in indices.tolist()])}

    def _piece(self, index: int) -> Tensor:
        draw = np.random.default_rng((self.seed, index))
        start = int(draw.integers(len(self.text) - self.length + 1))
        return _cut_out(self.text, start, self.length)


def spread_windows(text: Array, count: int, length: int) -> Tensor:
    """Returns pieces at equal distances from the first token to the last: (count, length)."""
    if not len(text):
        raise ValueError(expected("--data", "20 tokens or more", "fewer", "give more text"))
    length = min(length, len(text))
    last = len(text) - length
    starts = torch.linspace(0, last, count).long().clamp(max=last)  # rounded in large texts
    return torch.stack([_cut_out(text, start, length) for start in starts.tolist()])


def _cut_out(text: Array, start: int, length: int) -> Tensor:
    return torch.from_numpy(text[start : start + length].astype(np.int64))
