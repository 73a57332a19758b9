"""Random numbers from counters: Philox 4x32-10 (Salmon et al., 2011), in torch on any device."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUNDS = 10
# The factors of the words 2 and 0 of a counter, and what is added to the key after each round.
_FACTORS = (0xCD9E8D57, 0xD2511F53)
_STEPS = (0x9E3779B9, 0xBB67AE85)
# How many positions are drawn at once: about a hundred operations on small tensors are one cost.
AHEAD = 64
_MOST_NUMBERS = 1 << 16


def philox(counter: Tensor, key: Tensor) -> Tensor:
    """Four random words for each counter.

    Args:
        counter: (4, ...) int64, words of 32 bits.
        key: (2, ...) int64, words of 32 bits, broadcastable to the counters.

    Returns:
        (4, ...) int64 in 0..2^32 - 1.
    """
    device = counter.device
    shape = (2, *[1] * (counter.ndim - 1))
    factors = torch.tensor(_FACTORS, device=device).view(shape)
    step = torch.tensor(_STEPS, device=device).view(shape)
    even, odd = counter[0::2], counter[1::2]
    for round_ in range(_ROUNDS):
        # The low and high halves of products of 64 bits, which wrap around as signed integers.
        products = even.flip(0) * factors
        even = (products >> 32) ^ odd ^ (key + round_ * step)
        even, odd = even & _WORD, products & _WORD
    return torch.stack([even[0], odd[0], even[1], odd[1]])


class RowStreams(Protocol):
    """A stream of random numbers for each row, as `Streams`."""

    def next(self) -> Tensor:
        """The numbers (B, 4) of the next position, float64 in (0, 1)."""

    def take(self, count: int) -> Tensor:
        """The numbers of the next `count` positions, (count, B, 4)."""

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""


class Streams:
    """For each row a stream of random numbers: four for each position, whatever the other rows.

    Args:
        seeds: (B,) int64, the keys.
        samples: (B,) int64 in 0..2^32 - 1: rows of one seed with different numbers are independent.
        positions: (B,) int64, those of the first numbers.
        ahead: how many positions are drawn at once, if the rows are few.
    """

    def __init__(
        self, seeds: Tensor, samples: Tensor, positions: Tensor, ahead: int = AHEAD
    ) -> None:
        self._ahead = ahead
        self._seeds = seeds
        self._samples = samples
        self._positions = positions  # after the numbers that are drawn already
        self._drawn: list[Tensor] = []  # of the next positions, the last one first

    def next(self) -> Tensor:
        """The numbers (B, 4) of the next position, float64 in (0, 1)."""
        if not self._drawn:
            self._draw(max(1, min(self._ahead, _MOST_NUMBERS // max(1, len(self._seeds)))))
        return self._drawn.pop()

    def take(self, count: int) -> Tensor:
        """The numbers of the next `count` positions, (count, B, 4)."""
        return torch.stack([self.next() for _ in range(count)])

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._seeds, self._samples = self._seeds[rows], self._samples[rows]
        self._positions = self._positions[rows]
        self._drawn = [numbers[rows] for numbers in self._drawn]

    def _draw(self, count: int) -> None:
        numbers = draw_numbers(self._seeds, self._samples, self._positions, count)
        self._drawn = list(numbers.unbind())[::-1]
        self._positions = self._positions + count


def draw_numbers(seeds: Tensor, samples: Tensor, positions: Tensor, count: int) -> Tensor:
    """The numbers of `count` positions from `positions` (B,) on, (count, B, 4); see `Streams`."""
    ahead = torch.arange(count, device=seeds.device).unsqueeze(1)
    places = positions + ahead  # (count, B)
    words = [places & _WORD, places >> 32, samples.expand_as(places), torch.zeros_like(places)]
    key = torch.stack([seeds & _WORD, (seeds >> 32) & _WORD]).unsqueeze(1)
    numbers = (philox(torch.stack(words), key).double() + 0.5) / (_WORD + 1)
    return numbers.permute(1, 2, 0)
