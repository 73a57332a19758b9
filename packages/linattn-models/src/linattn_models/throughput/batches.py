"""The batch size with which a method makes the most samples per second.

Sizes are doubled. The search ends after two doublings in a row that gain less than 5 % (a single
one may be chance), or before a size that is predicted, from the size before, not to fit into the
free memory or to take too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from linattn_core.errors import expected
from linattn_models.memory import available_memory, lacks_memory, peak_memory
from linattn_models.throughput.generating import Throughput
from linattn_models.validation import at_least

# The ratio of rates that counts as a gain; the share of the free memory that may be used.
WORTHWHILE = 1.05
USABLE = 0.8


@dataclass(frozen=True)
class BestBatch:
    """The result of `best_batch`.

    Attributes:
        batch: the fastest batch size.
        timed: the measurement of this batch size.
        largest_timed: the largest batch size that was timed, though it may not be faster.
        bounded_by: why larger batches were not tried; None if they were not faster.
    """

    batch: int
    timed: Throughput
    largest_timed: int
    bounded_by: str | None


@dataclass(frozen=True)
class _Trial:
    batch: int
    timed: Throughput
    bytes_used: float
    slowest: float  # seconds of the slowest position


def best_batch(
    time: Callable[[int], Throughput],
    device: torch.device,
    *,
    largest: int,
    smallest: int = 1,
    most_seconds: float = math.inf,
) -> BestBatch:
    """Times batches of `smallest`, twice that, and so on to `largest`; returns the best one.

    Args:
        time: measures a batch size, as `generation_throughput` does; few positions are enough.
        device: the device whose memory is used.
        largest, smallest: the largest and the first batch size that is tried.
        most_seconds: a batch is not tried if one position is predicted to take longer.

    Raises:
        ValueError: a position of the smallest batch takes longer than `most_seconds`.
    """
    smallest = at_least("smallest", smallest, 1)
    largest = at_least("largest", largest, smallest)
    best = trial = _try(time, device, smallest)
    if trial.slowest > most_seconds:
        what = f"seconds a position of a batch of {smallest}"
        advice = "allow more or take a smaller model"
        wanted, got = f"at most {most_seconds:g}", f"{trial.slowest:.0f}"
        raise ValueError(expected(what, wanted, got, advice))
    in_vain = 0
    for batch in _doubled(smallest, largest):
        bound = _bound(trial, batch, available_memory(device), most_seconds)
        if bound:
            return _found(best, trial, f"a batch of {batch:,} was {bound}")
        try:
            trial = _try(time, device, batch)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            return _found(best, trial, f"a batch of {batch:,} did not fit into memory")
        in_vain = 0 if _rate(trial) > WORTHWHILE * _rate(best) else in_vain + 1
        best = max(best, trial, key=_rate)
        if in_vain == 2:
            return _found(best, trial, None)
    return _found(best, trial, f"the largest batch allowed is {largest:,}")


def _found(best: _Trial, latest: _Trial, bounded_by: str | None) -> BestBatch:
    return BestBatch(best.batch, best.timed, latest.batch, bounded_by)


def _try(time: Callable[[int], Throughput], device: torch.device, batch: int) -> _Trial:
    timed, peak = peak_memory(device, partial(time, batch))
    used = max(peak, batch * timed.state_bytes_per_sample)
    return _Trial(batch, timed, used, max(seconds for _, seconds in timed.seconds_per_step))


def _rate(trial: _Trial) -> float:
    return trial.timed.samples_per_second


def _doubled(smallest: int, largest: int) -> Iterator[int]:
    batch = smallest
    while batch < largest:
        batch = min(2 * batch, largest)
        yield batch


def _bound(trial: _Trial, batch: int, free: float, most_seconds: float) -> str | None:
    growth = batch / trial.batch
    seconds = trial.slowest * growth
    if seconds > most_seconds:
        return f"expected to take {seconds:.0f} s a position, more than the {most_seconds:g} s"
    needed = trial.bytes_used * growth
    if needed > USABLE * free:
        return f"expected to take {needed / 1e9:,.1f} GB, where {free / 1e9:,.1f} GB are free"
    return None
