"""Sequences that say the same thing twice.

    0 w w w w 0 w w w w . . .

A separator, k symbols out of ten, the separator, the same k symbols. k is drawn for each sequence,
every number from 1 up being as likely as any other; what is left of the positions is padding. Who
reads from the left must guess the first half, and can know all of the second.

Nothing is stored: a sequence is a function of the seed, the stream and its index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

SEPARATOR = 0
SYMBOLS = 10  # 1 to 10
VOCABULARY = SYMBOLS + 1

Stream = Literal["training", "held-out"]
_STREAM_NUMBERS: dict[Stream, int] = {"training": 0, "held-out": 1}


@dataclass(frozen=True)
class Duplications:
    """The first `examples` sequences of a stream, as training data and to be looked at.

    seed, stream: decide what is drawn; the streams of a seed have nothing to do with each other.
    examples: how many sequences there are.
    max_length: positions of each, padding included; the longest copy is of half of them, less one.
    """

    seed: int
    stream: Stream
    examples: int
    max_length: int

    def __post_init__(self) -> None:
        if self.max_length < 4:
            raise ValueError(
                "expected --max-length of 4 or more, for two separators and one symbol twice, got "
                f"{self.max_length}"
            )

    def __len__(self) -> int:
        return self.examples

    @property
    def most_symbols(self) -> int:
        """The greatest k."""
        return self.max_length // 2 - 1

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """The sequences at `indices` (B,): "tokens" (B, max_length) and "copied" (B,), each k."""
        drawn = [self._drawn(index) for index in indices.tolist()]
        copied = torch.tensor([k for k, _ in drawn])
        symbols = torch.from_numpy(np.stack([symbols for _, symbols in drawn]))
        return {"tokens": duplicated(symbols, copied, self.max_length), "copied": copied}

    def _drawn(self, index: int) -> tuple[int, np.ndarray]:
        """k of a sequence, and its symbols with some to spare: (most_symbols,)."""
        draws = np.random.default_rng((_STREAM_NUMBERS[self.stream], self.seed, index))
        k = int(draws.integers(1, self.most_symbols, endpoint=True))
        return k, draws.integers(1, SYMBOLS, self.most_symbols, endpoint=True)


def duplicated(symbols: Tensor, copied: Tensor, max_length: int) -> Tensor:
    """The first `copied` of each row's symbols, twice, each time behind a separator.

    Padding has the separator's number: it stands behind all that a causal model is asked for.

    Args:
        symbols: (B, K) int64.
        copied: (B,) int64, in 1..K.

    Returns:
        (B, max_length) int64.
    """
    position = torch.arange(max_length)  # (N,)
    k = copied[:, None]
    second = in_second_half(copied, max_length)  # (B, N)
    first = (position >= 1) & (position <= k)
    source = torch.where(second, position - k - 2, position - 1)
    drawn = symbols.gather(1, source.clamp(0, symbols.shape[1] - 1))
    return torch.where(first | second, drawn, SEPARATOR)


def in_second_half(copied: Tensor, max_length: int) -> Tensor:
    """Whether a position holds a symbol that was there before: (B,) -> (B, max_length) bool."""
    position = torch.arange(max_length, device=copied.device)
    k = copied[:, None]
    return (position >= k + 2) & (position < 2 * k + 2)
