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

from linattn_lab.memory import peak_memory
from linattn_lab.throughput import Throughput
from linattn_lab.timing import NotMeasured
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
    """

    batch: int
    largest_timed: int


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
        NotMeasured: a position of a single sample takes longer than `most_seconds`.
    """
    largest = at_least("largest", largest, 1)
    batch = best_size = 1
    latest, used = _time(time, device, batch)
    if latest.slowest > most_seconds:
        raise NotMeasured(f"a position takes {latest.slowest:.0f} s, more than {most_seconds:g} s")
    best_rate, in_vain = latest.samples_per_second, 0
    while in_vain < 2 and batch < largest:
        larger = min(2 * batch, largest)
        growth = larger / batch
        if latest.slowest * growth > most_seconds:
            break
        if used * growth > USABLE * available_memory(device):
            break
        try:
            latest, used = _time(time, device, larger)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            break
        batch = larger
        gain = latest.samples_per_second / best_rate
        in_vain = 0 if gain > WORTHWHILE else in_vain + 1
        if gain > 1:
            best_rate, best_size = latest.samples_per_second, batch
    return BestBatch(best_size, batch)


def _time(
    time: Callable[[int], Throughput], device: torch.device, batch: int
) -> tuple[Throughput, float]:
    """The measurement of a batch, and the bytes that it needed."""
    timed, peak = peak_memory(device, partial(time, batch))
    return timed, max(peak, batch * timed.state_bytes_per_sample)
