"""What the methods of a series took so far, and from it whether the next size can be tried."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from benchmarks.measure.cases import NotMeasured, Settings
from benchmarks.measure.results import CaseResult, MethodResult
from linattn_models.throughput import available_memory

GIB = 2**30
SHARE_OF_FREE = 0.8  # of the free memory that a call may be expected to take
MOST_SECONDS = 240.0
# Nothing that reads its inputs grows more slowly than they do, and what seems to grow faster than a
# cube was disturbed.
LEAST_GROWTH, MOST_GROWTH = 1.0, 3.0

Point = tuple[int, float]  # a length, and what was measured there


class Ledger:
    """Times and peaks per unit of the methods of one series, by length.

    A method is asked about before its inputs are made: at a length where its call would not fit
    into the memory that is free, or would take too long, it is not measured; the others go on.

    Args:
        earlier: what the cases of the series found, in the order of their lengths.
        settings: the sizes of a quick run are tiny, so that it holds nothing back.
        most_seconds: what one call may take.
        memory_growth: the least exponents of the peak in the length, of methods whose memory is
            known to grow faster than their inputs.
    """

    def __init__(
        self,
        earlier: Sequence[CaseResult],
        settings: Settings,
        *,
        most_seconds: float = MOST_SECONDS,
        memory_growth: Mapping[str, float] | None = None,
    ) -> None:
        self._earlier, self._settings = earlier, settings
        self._most_seconds = most_seconds
        self._memory_growth = memory_growth or {}

    def require(self, name: str, length: int, units: float, least_bytes: float = 0.0) -> None:
        """Refuses a call of so many units at that length that should not be made.

        Args:
            least_bytes: what it surely holds; all that is known of a method without a peak so far.

        Raises:
            NotMeasured: with what it was expected to take.
        """
        if self._settings.quick:
            return
        growth = self._memory_growth.get(name, LEAST_GROWTH)
        peaks = self._points(name, lambda method: method.peak_per_unit)
        needed = max(units * extrapolated(peaks, length, growth), least_bytes)
        free = available_memory(torch.device(self._settings.device))
        if needed > SHARE_OF_FREE * free:
            raise NotMeasured(
                f"does not fit: needs about {needed / GIB:.3g} GiB, {free / GIB:.3g} GiB are free"
            )
        times = self._points(name, lambda method: method.seconds)
        seconds = units * extrapolated(times, length, LEAST_GROWTH)
        if seconds > self._most_seconds:
            raise NotMeasured(f"not measured: about {seconds:.0f} s a call")

    def _points(self, name: str, read: Callable[[MethodResult], float | None]) -> list[Point]:
        found = [(result.case.at, read(result.method(name))) for result in self._earlier]
        return [(at, value) for at, value in found if at is not None and value is not None]


def extrapolated(points: Sequence[Point], length: int, least: float) -> float:
    """Returns what to expect at `length`: the last point times its growth since the one before.

    The growth is a power of the length: at least `least`, at most MOST_GROWTH; 0 without points.
    """
    if not points:
        return 0.0
    (before_length, before), (last_length, last) = points[-2:][0], points[-1]
    exponent = least
    if 0 < before < last:
        grown = math.log(last / before) / math.log(last_length / before_length)
        exponent = min(max(least, grown), MOST_GROWTH)
    return last * float(length / last_length) ** exponent
