"""Times calls by the clock of their device, several of them in interleaved rounds."""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Protocol

import torch

# Another method filled the caches before a sample, and memory that was idle is slow at first. One
# call that is not counted restores both, unless calls are long: without it, 18 ms became 28 ms.
LEAD_IN_SECONDS = 1.5
FEWEST_CALLS, MOST_CALLS = 3, 100  # of which a sample is the median
# Bytes written before each call that is timed on a GPU. They evict the inputs from the L2 cache,
# and take so long that the processor enqueues the call meanwhile: launches are not part of the
# time. A tensor of the timer's own takes at most this share of the GPU's memory.
LEAD_BYTES, LARGEST_SHARE = 2**30, 16
# How often it may be written where once is too short. A call that itself waits for the GPU has its
# launches in its time, whatever was written before.
MOST_LEADS = 64

Run = Callable[[], object]
Stopwatch = Callable[[Run], float]
"""Makes one call and returns its seconds."""


class NotMeasured(Exception):
    """A method is left out of a measurement; the message is the reason."""


class Clock(Protocol):
    """Records readings, and gives the times between them afterwards."""

    def read(self) -> None:
        """Records the time at which all work submitted to the device so far is done."""

    def seconds(self) -> list[float]:
        """The times in seconds between each reading and the next."""


def clock(device: torch.device) -> Clock:
    """A clock for calls on this device: the processor's, or CUDA events."""
    return _CudaClock(device) if device.type == "cuda" else _CpuClock()


class _CpuClock:
    def __init__(self) -> None:
        self._readings: list[float] = []

    def read(self) -> None:
        self._readings.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in pairwise(self._readings)]


class _CudaClock:
    """CUDA events: the CPU does not wait for them, so it runs ahead as without measurement."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._readings: list[torch.cuda.Event] = []

    def read(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._readings.append(event)

    def seconds(self) -> list[float]:
        """Waits until the GPU has passed the last reading."""
        self._stream.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._readings)]


@functools.cache
def stopwatch(device: str) -> Stopwatch:
    """Times single calls by the processor's clock, or by CUDA events with a cold L2 cache."""
    where = torch.device(device)

    def time_run(run: Run) -> float:
        return time_calls(where, run)[0]

    if device != "cuda":
        return time_run
    cold = torch.empty(min(LEAD_BYTES, largest_tensor(where)), dtype=torch.int8, device=where)
    return time_behind(time_run, cold.zero_, _mark)


def time_behind(timed: Stopwatch, lead: Run, mark: Callable[[], Callable[[], bool]]) -> Stopwatch:
    """Times calls behind a lead that keeps the GPU busy until their last launch has been made.

    The lead is repeated until it is long enough; later calls repeat it as often.

    Args:
        timed: measures a call by the GPU's clock.
        lead: keeps the GPU busy for a while.
        mark: records the current end of the GPU's queue; returns whether the GPU has reached it.
    """
    leads = 1

    def behind(run: Run) -> float:
        nonlocal leads
        for _ in range(leads):
            lead()
        reached, waited = mark(), False

        def launch() -> None:
            nonlocal waited
            run()
            waited = reached()

        seconds = timed(launch)
        if not waited or leads >= MOST_LEADS:
            return seconds
        leads *= 2
        return behind(run)

    return behind


def time_calls(device: torch.device, run: Run, calls: int = 1) -> list[float]:
    """The seconds of each of several calls in a row."""
    readings = clock(device)
    readings.read()
    for _ in range(calls):
        run()
        readings.read()
    return readings.seconds()


def _mark() -> Callable[[], bool]:
    event = torch.cuda.Event()
    event.record()
    return event.query


def sample(run: Run, timed: Stopwatch, seconds: float) -> float:
    """Returns the seconds of a call: a long call's own, else the median of several.

    Args:
        run: was called before, by its check.
        seconds: what the calls may take together; the fewest are made in any case.
    """
    first = timed(run)
    if first >= LEAD_IN_SECONDS:
        return first
    calls = max(FEWEST_CALLS, min(MOST_CALLS, int(seconds / max(first, 1e-9))))
    return statistics.median(timed(run) for _ in range(calls))


def largest_tensor(device: torch.device) -> int:
    """Bytes that a tensor of the timer's own may take on a GPU."""
    return int(torch.cuda.get_device_properties(device).total_memory // LARGEST_SHARE)


def interleave(
    samplers: Mapping[str, Callable[[], float]],
    *,
    seconds: float,
    rounds: tuple[int, int],
    now: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Takes samples in rounds A B C, A B C, ...: a drift of the machine affects all.

    Rounds go on until the next one would exceed the time budget, within the bounds on their number.

    Args:
        samplers: take one sample each.
        seconds: time budget of the rounds.
        rounds: least and largest number of rounds.
        now: reads the clock of the budget.

    Returns:
        The samples by name, one per round; and the reasons of those that raised NotMeasured.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    reasons: dict[str, str] = {}
    fewest, most = rounds
    gc.collect()
    collects = gc.isenabled()
    gc.disable()  # the collector stays out of the samples
    try:
        start, done = now(), 0
        while done < most and (done < fewest or (now() - start) * (done + 1) / done <= seconds):
            for name in list(samples):
                try:
                    samples[name].append(samplers[name]())
                except NotMeasured as reason:
                    del samples[name]
                    reasons[name] = str(reason)
            done += 1
    finally:
        if collects:
            gc.enable()
    return samples, reasons
