"""What the methods of a series took so far, and from it whether the next size can be tried."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from benchmarks.memory import available_bytes
from benchmarks.registry import Absent, Method, NotMeasured, Settings
from benchmarks.runner import CaseResult

GIB = 2**30
ALLOCATOR = "DefaultCPUAllocator"  # as torch's error names it when memory is refused
SHARE_OF_FREE = 0.8  # of the free memory that a call may be expected to take
MOST_SECONDS = 240.0
# Nothing that reads its inputs grows more slowly than they do, and what seems to grow faster than a
# cube was disturbed.
LEAST_GROWTH, MOST_GROWTH = 1.0, 3.0

Point = tuple[int, float]  # a length, and what was measured there


@dataclasses.dataclass
class Ledger:
    """Times and peaks per unit of the methods of one series, by length.

    A method is asked about before it is checked: at a length where its call would not fit into the
    memory that is free, or would take too long, it raises NotMeasured, and the others go on.

    Args:
        available: the free memory of a device in bytes.
        most_seconds: what one call may take.
        memory_growth: the least exponents of the peak in the length, of methods whose memory is
            known to grow faster than their inputs.
    """

    available: Callable[[str], float] = available_bytes
    most_seconds: float = MOST_SECONDS
    memory_growth: Mapping[str, float] = dataclasses.field(default_factory=dict)
    _seconds: dict[str, list[Point]] = dataclasses.field(default_factory=dict)
    _peaks: dict[str, list[Point]] = dataclasses.field(default_factory=dict)

    def note(self, result: CaseResult) -> None:
        """Learns what a case of the series found; cases come in the order of their lengths."""
        length = result.case.at
        assert length is not None  # a case of a series has a size
        for method in result.methods:
            if method.value is not None:
                self._seconds.setdefault(method.name, []).append((length, method.value.median))
            if method.peak_per_unit is not None:
                self._peaks.setdefault(method.name, []).append((length, method.peak_per_unit))

    def guarded(
        self,
        made: Method | Absent,
        length: int,
        settings: Settings,
        least_bytes: float = 0.0,
    ) -> Method | Absent:
        """Returns the method, about which `require` is asked before it is checked.

        The sizes of a quick run are tiny, and not the lengths that they stand for.
        """
        if isinstance(made, Absent) or settings.quick:
            return made

        def check() -> str | None:
            self.require(made.name, length, made.units, least_bytes, settings.device)
            try:
                return made.check()
            except RuntimeError as error:
                if ALLOCATOR not in str(error):
                    raise
                raise NotMeasured("does not fit: the system gave no more memory") from None

        return dataclasses.replace(made, check=check)

    def require(
        self,
        name: str,
        length: int,
        units: float,
        least_bytes: float = 0.0,
        device: str = "cpu",
    ) -> None:
        """Raises NotMeasured when a call of so many units should not be made at that length.

        Args:
            least_bytes: what it surely holds; all that is known of a method without a peak so far.
        """
        growth = self.memory_growth.get(name, LEAST_GROWTH)
        peak = units * extrapolated(self._peaks.get(name, ()), length, growth)
        needed, free = max(peak, least_bytes), self.available(device)
        if needed > SHARE_OF_FREE * free:
            raise NotMeasured(
                f"does not fit: needs about {needed / GIB:.3g} GiB, {free / GIB:.3g} GiB are free"
            )
        seconds = units * extrapolated(self._seconds.get(name, ()), length, LEAST_GROWTH)
        if seconds > self.most_seconds:
            raise NotMeasured(f"not measured: about {seconds:.0f} s a call")


def extrapolated(points: Sequence[Point], length: int, least: float) -> float:
    """Returns what to expect at `length`: the last point times its growth since the one before.

    The growth is a power of the length, taken from the last two points, at least `least`, which
    is all that is known after one point, and at most MOST_GROWTH. Before the first, nothing is
    expected: 0.
    """
    if not points:
        return 0.0
    last_length, last = points[-1]
    exponent = least
    if len(points) > 1:
        before_length, before = points[-2]
        if 0 < before < last:
            grown = math.log(last / before) / math.log(last_length / before_length)
            exponent = min(max(least, grown), MOST_GROWTH)
    return last * float(length / last_length) ** exponent
