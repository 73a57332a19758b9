"""Interleaved rounds of methods, timed by the clock of their device."""

from __future__ import annotations

import functools
import gc
import statistics
import time
from collections.abc import Callable, Mapping

import torch

from benchmarks.measure.cases import NotMeasured
from linattn_lab.timing import Clock, clock

# Another method filled the caches before a sample, and memory that was idle is slow at first. One
# call that is not counted restores both, unless calls are long: without it, 18 ms became 28 ms.
LEAD_IN_SECONDS = 1.5
FEWEST_CALLS, MOST_CALLS = 3, 100  # of which a sample is the median
# Bytes written before each call that is timed on a GPU. They evict the inputs from the L2 cache,
# and take so long that the processor enqueues the call meanwhile: launches are not part of the
# time. A tensor of the benchmarks' own takes at most this share of the GPU's memory.
LEAD_BYTES, LARGEST_SHARE = 2**30, 16
# How often it may be written where once is too short. A call that itself waits for the GPU has its
# launches in its time, whatever was written before.
MOST_LEADS = 64

Run = Callable[[], object]
Stopwatch = Callable[[Run], float]
"""Makes one call and returns its seconds."""


@functools.cache
def stopwatch(device: str) -> Stopwatch:
    """Times single calls by the processor's clock, or by CUDA events with a cold L2 cache."""
    where = torch.device(device)
    if device != "cuda":
        return functools.partial(_timed, functools.partial(clock, where))
    cold = torch.empty(min(LEAD_BYTES, largest_tensor(where)), dtype=torch.int8, device=where)
    return led(functools.partial(_timed, functools.partial(clock, where)), cold.zero_, _mark)


def led(timed: Stopwatch, lead: Run, mark: Callable[[], Callable[[], bool]]) -> Stopwatch:
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

        def launched() -> None:
            nonlocal waited
            run()
            waited = reached()

        seconds = timed(launched)
        if not waited or leads >= MOST_LEADS:
            return seconds
        leads *= 2
        return behind(run)

    return behind


def _timed(new_clock: Callable[[], Clock], run: Run) -> float:
    readings = new_clock()
    readings.read()
    run()
    readings.read()
    return readings.seconds()[0]


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
    """Bytes that a tensor of the benchmarks' own may take on a GPU."""
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
    refused: dict[str, str] = {}
    fewest, most = rounds
    gc.collect()
    gc.disable()  # the collector stays out of the samples
    try:
        start, taken = now(), 0
        while taken < most and (taken < fewest or (now() - start) * (taken + 1) / taken <= seconds):
            for name in list(samples):
                try:
                    samples[name].append(samplers[name]())
                except NotMeasured as reason:
                    del samples[name]
                    refused[name] = str(reason)
            taken += 1
    finally:
        gc.enable()
    return samples, refused
