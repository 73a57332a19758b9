"""Interleaved rounds of methods, timed by the clock of their device."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch

from benchmarks.measure.cases import Method, NotMeasured
from linattn_models.throughput import Clock, clock

# A sample shorter than this is mostly the clock and the interpreter: short calls are repeated.
SAMPLE_SECONDS = 0.01
MOST_CALLS_A_SAMPLE = 1_000
WARM_UP_CALLS = 2
# What ran before a sample had the caches, and memory left idle meanwhile is slow at first. A call
# that is not timed brings both back, where it costs little: one of 18 ms took 28 ms without.
LEAD_IN_SECONDS = 1.5
FEWEST_CALLS = 5  # of which the median is taken, where a single one would be a matter of chance
# Written before each call that is timed on a GPU. It leaves nothing of the inputs in the L2 cache,
# and takes the GPU a good while, in which the processor gets ahead: launches are not part of the
# time. No tensor of ours exceeds the share of the GPU's memory.
LEAD_BYTES, LARGEST_SHARE = 2**30, 16
MOST_CALLS_ON_GPU = 20

Run = Callable[[], object]
Sample = Callable[[], float]


def cpu_clock() -> Clock:
    """The processor's clock."""
    return clock(torch.device("cpu"))


class Timer(Protocol):
    """Warms a call up, and returns what takes one sample of its time."""

    def prepare(self, run: Run, short_seconds: float | None = None) -> Sample:
        """Returns a function that gives the seconds of one call, from as many as are needed.

        Args:
            run: was called before, by its check.
            short_seconds: see `Case`; None for samples of equal length.
        """


class CpuTimer:
    """Reads the processor's clock.

    Args:
        new_clock: makes the clock that a sample is taken with.
    """

    def __init__(self, new_clock: Callable[[], Clock] = cpu_clock) -> None:
        self._new_clock = new_clock

    def prepare(self, run: Run, short_seconds: float | None = None) -> Sample:
        """See `Timer`. Short calls are repeated, after one that is not timed."""
        if short_seconds is not None:
            return functools.partial(self._typical, run, short_seconds)
        duration = min(self._timed(run) for _ in range(WARM_UP_CALLS))
        calls = max(1, min(MOST_CALLS_A_SAMPLE, math.ceil(SAMPLE_SECONDS / max(duration, 1e-9))))
        return functools.partial(self._sample, run, calls, leads_in=duration < LEAD_IN_SECONDS)

    def _sample(self, run: Run, calls: int, *, leads_in: bool) -> float:
        if leads_in:
            run()
        return self._timed(run, calls)

    def _typical(self, run: Run, short_seconds: float) -> float:
        """A long call's own time; else the median of as many calls as fit, or a few."""
        first = self._timed(run)  # after another method, it finds caches cold
        if first >= LEAD_IN_SECONDS:
            return first
        fitting = min(MOST_CALLS_A_SAMPLE, int(short_seconds / max(first, 1e-9)))
        calls = max(fitting, FEWEST_CALLS if short_seconds else 1)
        return statistics.median(self._timed(run) for _ in range(calls))

    def _timed(self, run: Run, calls: int = 1) -> float:
        readings = self._new_clock()
        readings.read()
        for _ in range(calls):
            run()
        readings.read()
        return readings.seconds()[0] / calls


class CudaTimer:
    """CUDA events on the current stream, each call with a cold L2 cache; the median of several."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        bytes_each = min(LEAD_BYTES, largest_tensor(device))
        self._lead = torch.empty(bytes_each, dtype=torch.int8, device=device)

    def prepare(self, run: Run, short_seconds: float | None = None) -> Sample:
        """See `Timer`; the cost of a call decides how many a sample takes, in every case."""
        for _ in range(WARM_UP_CALLS):
            run()
        return functools.partial(self._sample, run)

    def _sample(self, run: Run) -> float:
        taken: list[float] = []
        while len(taken) < MOST_CALLS_ON_GPU and sum(taken) < SAMPLE_SECONDS:
            readings = clock(self._device)
            self._lead.zero_()
            readings.read()
            run()
            readings.read()
            taken += readings.seconds()
        return statistics.median(taken)


def largest_tensor(device: torch.device) -> int:
    """Bytes that a tensor of the benchmarks' own may take on a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory // LARGEST_SHARE)


@functools.cache
def timer(device: str) -> Timer:
    """The timer for calls on that device, the same at every call."""
    return CudaTimer(torch.device(device)) if device == "cuda" else CpuTimer()


@dataclasses.dataclass
class Measured:
    """Samples per call by method, one a round, and the methods that fell out, with the reason."""

    samples: dict[str, list[float]]
    refused: dict[str, str]


def interleave(
    methods: Mapping[str, Method],
    on: Timer,
    *,
    seconds: float,
    rounds: tuple[int, int],
    short_seconds: float | None = None,
    guard: Callable[[str, Callable[[], Any]], Any] = lambda name, call: call(),
    new_clock: Callable[[], Clock] = cpu_clock,
) -> Measured:
    """Measures the methods in rounds A B C, A B C, ... and returns each one's samples per call.

    Rounds go on until the next one would exceed the time budget, within the bounds on their
    number. A drift of the machine thus falls on all methods alike.

    Args:
        methods: what to measure; each has passed its check.
        on: times the calls.
        seconds: time budget of the rounds, warm-up not counted.
        rounds: least and largest number of rounds.
        short_seconds: see `Case`.
        guard: calls, and turns what a method raises into NotMeasured.
        new_clock: makes the clock of the budget.

    Returns:
        The samples in the order of the rounds. A method that raised NotMeasured has none.
    """
    fewest, most = rounds
    measured = Measured({name: [] for name in methods}, {})
    samples: dict[str, Sample] = {}
    with _no_garbage_collection():
        for name, method in methods.items():
            with _falling_out(name, measured):
                prepare = functools.partial(_prepared, method, on, short_seconds)
                samples[name] = guard(name, prepare)
        budget = new_clock()
        budget.read()
        elapsed, taken = 0.0, 0
        while taken < most and (taken < fewest or _fits_another(elapsed, taken, seconds)):
            for name, sample in samples.items():
                if name in measured.samples:
                    with _falling_out(name, measured):
                        measured.samples[name].append(guard(name, sample))
            taken += 1
            budget.read()
            elapsed = sum(budget.seconds())
    return measured


def _prepared(method: Method, on: Timer, short_seconds: float | None) -> Sample:
    if method.measure is not None:
        return method.measure
    assert method.run is not None  # Method holds exactly one of the two
    return on.prepare(method.run, short_seconds)


@contextlib.contextmanager
def _falling_out(name: str, measured: Measured) -> Iterator[None]:
    try:
        yield
    except NotMeasured as reason:
        del measured.samples[name]
        measured.refused[name] = str(reason)


def _fits_another(elapsed: float, taken: int, seconds: float) -> bool:
    return taken == 0 or elapsed + elapsed / taken <= seconds


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
