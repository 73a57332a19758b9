"""The batch size with which a method makes the most samples per second.

Sizes are doubled. The search ends after two doublings in a row that gain less than 5 % (a single
one may be chance), or before a size that is predicted, from the size before, not to fit into the
free memory or to take too long.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from linattn_core.errors import expected
from linattn_lab.memory import peak_memory
from linattn_lab.throughput import Throughput
from linattn_models.basics.memory import available_memory, lacks_memory
from linattn_models.basics.validation import at_least

# The ratio of rates that counts as a gain; the share of the free memory that may be used.
WORTHWHILE = 1.05
USABLE = 0.8


@dataclass(frozen=True)
class BestBatch:
    """The result of `best_batch`.

    Attributes:
        batch: the fastest batch size.
        largest_timed: the largest batch size that was timed, though it may not be faster.
        bounded_by: why larger batches were not tried; None if they were not faster.
    """

    batch: int
    largest_timed: int
    bounded_by: str | None


def best_batch(
    time: Callable[[int], Throughput],
    device: torch.device,
    *,
    largest: int,
    most_seconds: float = math.inf,
) -> BestBatch:
    """Times batches of 1, 2, 4 and so on to `largest`; returns the best one.

    Args:
        time: measures a batch size, as `generation_throughput` does; few positions are enough.
        device: the device whose memory is used.
        largest: the largest batch size that is tried.
        most_seconds: a batch is not tried if one position is predicted to take longer.

    Raises:
        ValueError: a position of a single sample takes longer than `most_seconds`.
    """
    largest = at_least("largest", largest, 1)
    batch = best_size = 1
    latest, used = _time(time, device, batch)
    if latest.slowest > most_seconds:
        what = "seconds a position of a batch of 1"
        advice = "allow more or take a smaller model"
        wanted, got = f"at most {most_seconds:g}", f"{latest.slowest:.0f}"
        raise ValueError(expected(what, wanted, got, advice))
    best_rate, in_vain, bounded_by = latest.samples_per_second, 0, None
    while in_vain < 2 and bounded_by is None:
        larger = min(2 * batch, largest)
        if batch == largest:
            bounded_by = f"the largest batch allowed is {largest:,}"
        elif bound := _bound(latest, used, larger / batch, device, most_seconds):
            bounded_by = f"a batch of {larger:,} was {bound}"
        else:
            try:
                latest, used = _time(time, device, larger)
            except (MemoryError, RuntimeError) as error:
                if not lacks_memory(error):
                    raise
                bounded_by = f"a batch of {larger:,} did not fit into memory"
                break
            batch = larger
            gain = latest.samples_per_second / best_rate
            in_vain = 0 if gain > WORTHWHILE else in_vain + 1
            if gain > 1:
                best_rate, best_size = latest.samples_per_second, batch
    return BestBatch(best_size, batch, bounded_by)


def _time(
    time: Callable[[int], Throughput], device: torch.device, batch: int
) -> tuple[Throughput, float]:
    """The measurement of a batch, and the bytes that it needed."""
    timed, peak = peak_memory(device, partial(time, batch))
    return timed, max(peak, batch * timed.state_bytes_per_sample)


def _bound(
    latest: Throughput, used: float, growth: float, device: torch.device, most_seconds: float
) -> str | None:
    """What forbids a batch that is so many times as large; None if nothing does."""
    seconds, needed, free = latest.slowest * growth, used * growth, available_memory(device)
    if seconds > most_seconds:
        return f"expected to take {seconds:.0f} s a position, more than the {most_seconds:g} s"
    if needed > USABLE * free:
        return f"expected to take {needed / 1e9:,.1f} GB, where {free / 1e9:,.1f} GB are free"
    return None
