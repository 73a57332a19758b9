"""Sequences whose second half repeats the first.

    0 w w w w 0 w w w w . . .

A separator, k symbols out of ten, the separator, the same k symbols, then padding. k is drawn for
each sequence, uniformly from 1 to the most that fits. A causal model can only guess the first half,
and can know all of the second.

Nothing is stored: a sequence is a function of the seed, the stream and its index.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from linattn_core.errors import expected

SEPARATOR = 0
SYMBOLS = 10  # 1 to 10
VOCABULARY = SYMBOLS + 1

Stream = Literal["training", "held-out"]
_STREAM_NUMBERS: dict[Stream, int] = {"training": 0, "held-out": 1}


@dataclass(frozen=True)
class Duplications:
    """The first `examples` sequences of a stream, as training data and for evaluation.

    Args:
        seed: decides what is drawn; sequences of two seeds are equal only by chance.
        stream: what the sequences are for; with the same seed, two streams are drawn independently,
            so that only short sequences are in both.
        examples: how many sequences there are.
        max_length: positions of each, padding included; the longest copy is half of them, less one.
    """

    seed: int
    stream: Stream
    examples: int
    max_length: int

    def __post_init__(self) -> None:
        if self.max_length < 4:
            wanted = "4 or more, for two separators and one symbol twice"
            raise ValueError(expected("--max-length", wanted, self.max_length))

    def __len__(self) -> int:
        return self.examples

    @property
    def most_symbols(self) -> int:
        """The largest k."""
        return self.max_length // 2 - 1

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        """The sequences at `indices` (B,): "tokens" (B, max_length) and "copied" (B,), each k."""
        drawn = [self._drawn(index) for index in indices.tolist()]
        copied = torch.tensor([k for k, _ in drawn])
        symbols = torch.from_numpy(np.stack([symbols for _, symbols in drawn]))
        return {"tokens": duplicate(symbols, copied, self.max_length), "copied": copied}

    def _drawn(self, index: int) -> tuple[int, np.ndarray]:
        """k of a sequence, and (most_symbols,) symbols, of which the first k are used."""
        draws = np.random.default_rng((_STREAM_NUMBERS[self.stream], self.seed, index))
        k = int(draws.integers(1, self.most_symbols, endpoint=True))
        return k, draws.integers(1, SYMBOLS, self.most_symbols, endpoint=True)


def duplicate(symbols: Tensor, copied: Tensor, max_length: int) -> Tensor:
    """The first `copied` of each row's symbols, twice, each time after a separator.

    Padding has the separator's number: a causal model never sees it before what it is asked for.

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
    """Whether a position holds a symbol of the second half: (B,) -> (B, max_length) bool."""
    position = torch.arange(max_length, device=copied.device)
    k = copied[:, None]
    return (position >= k + 2) & (position < 2 * k + 2)
