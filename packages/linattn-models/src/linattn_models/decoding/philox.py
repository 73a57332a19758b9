"""Random numbers from counters: Philox 4x32-10 (Salmon et al., 2011), in torch on any device."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_ROUNDS = 10
# The factors of the words 2 and 0 of a counter, and what is added to the key after each round.
_FACTORS = (0xCD9E8D57, 0xD2511F53)
_STEPS = (0x9E3779B9, 0xBB67AE85)
# How many positions are drawn at once: about a hundred operations on small tensors are one cost.
AHEAD = 256
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


class Streams:
    """For each row a stream of random numbers: four for each position, whatever the other rows.

    Args:
        seeds: (B,) int64, the keys.
        samples: (B,) int64 in 0..2^32 - 1: rows of one seed with different numbers are independent.
        positions: (B,) int64, those of the first numbers.
        still: (B,) bool, rows whose numbers are all 0.
        ahead: how many positions are drawn at once, if the rows are few.
    """

    def __init__(
        self,
        seeds: Tensor,
        samples: Tensor,
        positions: Tensor,
        still: Tensor,
        ahead: int = AHEAD,
    ) -> None:
        self._ahead = ahead
        self._rows = (seeds, samples, positions, still)  # positions: those of the slots 0
        self._numbers = positions.new_empty(0, len(seeds), 4, dtype=torch.float64)
        self._used = 0  # slots

    def take(self, count: int = 1) -> Tensor:
        """The numbers of the next `count` positions, (count, B, 4) float64 in (0, 1)."""
        if self._used + count > len(self._numbers):
            self._refill(max(count, min(self._ahead, _MOST_NUMBERS // max(1, len(self._rows[0])))))
        first = self._used
        self._used = first + count
        return self._numbers[first : first + count]

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._rows = cast(_Rows, tuple(x[rows] for x in self._rows))
        self._numbers = self._numbers[:, rows]

    def put(self, places: Tensor, other: Streams) -> None:
        """Continues with the rows of `other` in these places."""
        for own, new in zip(self._rows, other._next_rows(), strict=True):
            own[places] = new
        self._rows[2][places] -= self._used
        rows = cast(_Rows, tuple(x[places] for x in self._rows))
        self._numbers[:, places] = _numbers_of(rows, len(self._numbers))

    def _next_rows(self) -> _Rows:
        seeds, samples, positions, still = self._rows
        return seeds, samples, positions + self._used, still

    def _refill(self, count: int) -> None:
        self._rows, self._used = self._next_rows(), 0
        self._numbers = _numbers_of(self._rows, count)


_Rows = tuple[Tensor, Tensor, Tensor, Tensor]


def _numbers_of(rows: _Rows, count: int) -> Tensor:
    seeds, samples, positions, still = rows
    numbers = draw_numbers(seeds, samples, positions, count)
    return numbers.masked_fill(still.unsqueeze(1), 0.0)


def draw_numbers(seeds: Tensor, samples: Tensor, positions: Tensor, count: int) -> Tensor:
    """The numbers of `count` positions from `positions` (B,) on, (count, B, 4); see `Streams`."""
    ahead = torch.arange(count, device=seeds.device).unsqueeze(1)
    places = positions + ahead  # (count, B)
    words = [places & _WORD, places >> 32, samples.expand_as(places), torch.zeros_like(places)]
    key = torch.stack([seeds & _WORD, (seeds >> 32) & _WORD]).unsqueeze(1)
    numbers = (philox(torch.stack(words), key).double() + 0.5) / (_WORD + 1)
    return numbers.permute(1, 2, 0)
