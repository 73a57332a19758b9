"""The settings of draws, and the random numbers, of rows that come and go."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from linattn_models.decoding.batch.requests import SamplingParams
from linattn_models.decoding.philox import draw_numbers
from linattn_models.decoding.row_sampling import RowSampling
from linattn_models.heads.filters import Filters
from linattn_models.heads.settings import MIN_P, TOP_K, TOP_P

# So many positions of a row are drawn at once, because the operations on them have one fixed cost.
_AHEAD = 256


class StreamPool:
    """Random numbers of rows in places of fixed memory; each place is filled by itself.

    Args:
        capacity: the places.
        device: of the numbers.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._seeds, self._samples, self._positions = (
            torch.zeros(capacity, dtype=torch.int64, device=device) for _ in range(3)
        )
        self._numbers = torch.zeros(capacity, _AHEAD, 4, dtype=torch.float64, device=device)
        self._used = torch.zeros(capacity, dtype=torch.int64)  # of the numbers of each place

    def start(self, places: Tensor, seed: int, position: int) -> None:
        """Starts the samples 0, 1, ... of a seed in these places, at a position."""
        self._seeds[places], self._positions[places] = seed, position
        self._samples[places] = torch.arange(len(places), device=self._samples.device)
        self._used[places.cpu()] = _AHEAD

    def move(self, order: Tensor) -> None:
        """Puts into place i what was in place order[i]."""
        count, places = len(order), order.to(self._seeds.device)
        for x in (self._seeds, self._samples, self._positions, self._numbers):
            x[:count] = x[places]
        self._used[:count] = self._used[order.cpu()]

    def take(self, places: Tensor, count: int) -> Tensor:
        """The numbers of the next `count` positions of these places, (count, R, 4)."""
        used = self._used[places.cpu()]
        short = (used + count > _AHEAD).nonzero().squeeze(1)
        if len(short):
            self._refill(places.cpu()[short])
            used = self._used[places.cpu()]
        self._used[places.cpu()] = used + count
        slots = used + torch.arange(count).unsqueeze(1)  # (count, R)
        return self._numbers[places, slots.to(places.device)]

    def _refill(self, rows: Tensor) -> None:
        places = rows.to(self._seeds.device)
        # From the next position on, whose number may be drawn already.
        unused = (_AHEAD - self._used[rows]).to(places.device)
        positions = self._positions[places] - unused
        numbers = draw_numbers(self._seeds[places], self._samples[places], positions, _AHEAD)
        self._numbers[places] = numbers.transpose(0, 1)
        self._positions[places] = positions + _AHEAD
        self._used[rows] = 0


class StreamsOfPlaces:
    """The streams of some places of a pool, as `Streams`."""

    def __init__(self, pool: StreamPool, places: Tensor) -> None:
        self._pool = pool
        self._places = places

    def next(self) -> Tensor:
        """The numbers (R, 4) of the next position of each row."""
        return self.take(1)[0]

    def take(self, count: int) -> Tensor:
        """The numbers of the next `count` positions, (count, R, 4)."""
        return self._pool.take(self._places, count)

    def select_rows(self, rows: Tensor) -> None:
        """Continues with these rows."""
        self._places = self._places[rows]


class Places:
    """How each row of a batch draws.

    Args:
        capacity: the most rows.
        device: of the settings.
    """

    def __init__(self, capacity: int, device: torch.device) -> None:
        self._streams = StreamPool(capacity, device)
        settings = torch.zeros(capacity, dtype=torch.float64, device=device)
        self._temperature, self._top_p, self._min_p = settings + 1, settings + 1, settings
        self._top_k = torch.full((capacity,), int(TOP_K.off), device=device)
        self._sampling: tuple[int, RowSampling] | None = None  # of so many first places

    def start(self, places: Tensor, params: SamplingParams, position: int) -> None:
        """Sets how the rows in these places, the samples of one request, draw from a position."""
        self._temperature[places] = float(params.temperature)
        self._top_k[places] = int(TOP_K.off if params.top_k is None else params.top_k)
        self._top_p[places] = float(TOP_P.off if params.top_p is None else params.top_p)
        self._min_p[places] = float(MIN_P.off if params.min_p is None else params.min_p)
        self._streams.start(places, cast(int, params.seed), position)
        self._sampling = None

    def move(self, order: Tensor) -> None:
        """Puts into place i what was in place order[i]."""
        for x in (self._temperature, self._top_k, self._top_p, self._min_p):
            x[: len(order)] = x[order.to(x.device)]
        self._streams.move(order)
        self._sampling = None

    def first(self, rows: int) -> RowSampling:
        """Draws for the first places."""
        if self._sampling is None or rows != self._sampling[0]:
            places = torch.arange(rows, device=self._temperature.device)
            self._sampling = rows, self.of(places)
        return self._sampling[1]

    def of(self, places: Tensor) -> RowSampling:
        """Draws for these places."""
        pairs = ((self._top_k, TOP_K), (self._top_p, TOP_P), (self._min_p, MIN_P))
        limits = [
            x[places] if bool((x[places] != setting.off).any()) else None for x, setting in pairs
        ]
        filters = Filters(*limits).spread(len(places), 1, places.device)
        streams = StreamsOfPlaces(self._streams, places)
        return RowSampling(self._temperature[places], filters, streams, None)
