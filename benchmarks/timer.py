"""Interleaved rounds of methods, and the statistics of what they gave."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

from benchmarks.registry import Method, NotMeasured

Clock = Callable[[], float]

# A sample shorter than this is mostly the clock and the interpreter: short calls are repeated.
SAMPLE_SECONDS = 0.01
MOST_CALLS_A_SAMPLE = 1_000
WARM_UP_CALLS = 2
# What ran before a sample had the caches, and memory left idle meanwhile is slow at first. A call
# that is not timed brings both back, where it costs little: one of 18 ms took 28 ms without.
LEAD_IN_SECONDS = 1.5
FEWEST_CALLS = 5  # of which the median is taken, where a single one would be a matter of chance


@dataclasses.dataclass(frozen=True)
class Spread:
    """The median of repeated measurements and their quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Returns the median and quartiles of at least one value."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(median, low, high)


def pairwise(numerator: Sequence[float], denominator: Sequence[float]) -> list[float]:
    """The ratio round by round: both halves of each saw the same state of the machine."""
    return [a / b for a, b in zip(numerator, denominator, strict=True)]


@dataclasses.dataclass
class Measured:
    """Samples per call by method, one a round, and the methods that fell out, with the reason."""

    samples: dict[str, list[float]]
    refused: dict[str, str]


def interleave(
    methods: Sequence[Method],
    *,
    seconds: float,
    rounds: tuple[int, int],
    clock: Clock = time.perf_counter,
    on_round: Callable[[int], None] = lambda taken: None,
) -> Measured:
    """Measures the methods in rounds A B C, A B C, ... and returns each one's samples per call.

    Rounds go on until the next one would exceed the time budget, within the bounds on their
    number. A drift of the machine thus falls on all methods alike.

    Args:
        methods: what to measure; each has passed its check.
        seconds: time budget of the rounds, warm-up not counted.
        rounds: least and largest number of rounds.
        clock: returns seconds.
        on_round: told the number of rounds taken after each.

    Returns:
        The samples in the order of the rounds. A method that raised NotMeasured has none.
    """
    fewest, most = rounds
    measured = Measured({method.name: [] for method in methods}, {})
    with _no_garbage_collection():
        plans = {method.name: _warm_up(method, clock) for method in methods}
        started = clock()
        taken = 0
        while taken < most and (taken < fewest or _fits_another(clock() - started, taken, seconds)):
            for method in methods:
                if method.name not in measured.refused:
                    _take_sample(method, plans[method.name], clock, measured)
            taken += 1
            on_round(taken)
    return measured


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How a sample is taken: calls that are timed together, and whether one goes before them."""

    calls: int = 1
    leads_in: bool = False


def _take_sample(method: Method, plan: _Plan, clock: Clock, measured: Measured) -> None:
    try:
        if plan.leads_in:
            _sample(method, 1, clock)
        measured.samples[method.name].append(_sample(method, plan.calls, clock))
    except NotMeasured as reason:
        del measured.samples[method.name]
        measured.refused[method.name] = str(reason)


def _fits_another(elapsed: float, taken: int, seconds: float) -> bool:
    return taken == 0 or elapsed + elapsed / taken <= seconds


def _warm_up(method: Method, clock: Clock) -> _Plan:
    """Runs the method until it is warm and returns what one sample of it needs."""
    if method.measure is not None:
        return _Plan()
    duration = min(_sample(method, 1, clock) for _ in range(WARM_UP_CALLS))
    calls = max(1, min(MOST_CALLS_A_SAMPLE, math.ceil(SAMPLE_SECONDS / max(duration, 1e-9))))
    return _Plan(calls, leads_in=duration < LEAD_IN_SECONDS)


def _sample(method: Method, calls: int, clock: Clock) -> float:
    if method.measure is not None:
        return method.measure()
    assert method.run is not None  # Method holds exactly one of the two
    started = clock()
    for _ in range(calls):
        method.run()
    return (clock() - started) / calls


def typical_seconds(
    run: Callable[[], object], *, seconds: float, clock: Clock = time.perf_counter
) -> float:
    """Returns the time of one call: a long one's own, else the median of as many as fit, or a few.

    It is a measurement for `Method.measure` where a case's methods differ by orders of magnitude:
    a round holds one call of the slow ones and many of the fast ones.

    Args:
        run: was called before, by its check.
        seconds: what the calls of a short method may take together, if five do not take more; 0
            for a single one.
    """

    def once() -> float:
        started = clock()
        run()
        return clock() - started

    first = once()  # after another method it finds caches cold, and memory given back
    if first >= LEAD_IN_SECONDS:
        return first
    fitting = min(MOST_CALLS_A_SAMPLE, int(seconds / max(first, 1e-9)))
    calls = max(fitting, FEWEST_CALLS if seconds else 1)
    return statistics.median(once() for _ in range(calls))


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collects once, then keeps the collector out of the samples."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
