"""The batch size at which a method makes the most images per second.

Sizes are doubled from 1. Two doublings in a row that gain next to nothing end it, since one alone
can be a matter of chance, or of a size that suits the machine badly; so does what would not fit the
memory that is free, or take too long, judged by the size before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from linattn_models.training.script import lacks_memory

# Images/s that count as more, and the part of the free memory that is used.
WORTHWHILE = 1.05
USABLE = 0.8


@dataclass(frozen=True)
class Trial:
    """What one size was found to do.

    bytes_used: that memory rose by, at least what the states take.
    slowest: seconds of the slowest position.
    """

    batch: int
    images_per_second: float
    bytes_used: float
    slowest: float


@dataclass(frozen=True)
class Limits:
    """Where doubling ends in any case.

    largest_batch: images side by side.
    seconds: of the slowest position.
    """

    largest_batch: int
    seconds: float


@dataclass(frozen=True)
class Found:
    """The best size, and what kept larger ones from being tried; None if they were no better."""

    best: Trial
    bounded_by: str | None


def best_batch(attempt: Callable[[int], Trial], free: Callable[[], float], limits: Limits) -> Found:
    """Tries sizes until they are no better, or reach a limit.

    Args:
        attempt: measures a size.
        free: bytes of memory that can be taken.
        limits: where doubling ends.

    Raises:
        ValueError: a position of one image takes longer than the limit.
    """
    best = last = attempt(1)
    if last.slowest > limits.seconds:
        raise ValueError(f"a position of one image took {last.slowest:.0f} s, {_most(limits)}.")
    in_vain = 0
    for batch in _doubled(limits.largest_batch):
        bound = _bound(last, batch, free(), limits)
        if bound:
            return Found(best, f"a batch of {batch:,} was {bound}")
        try:
            last = attempt(batch)
        except (MemoryError, RuntimeError) as error:
            if not lacks_memory(error):
                raise
            return Found(best, f"a batch of {batch:,} did not fit into memory")
        in_vain = 0 if last.images_per_second > WORTHWHILE * best.images_per_second else in_vain + 1
        best = max(best, last, key=lambda trial: trial.images_per_second)
        if in_vain == 2:
            return Found(best, None)
    return Found(best, f"--largest-batch is {limits.largest_batch:,}")


def _doubled(largest: int) -> Iterator[int]:
    batch = 1
    while batch < largest:
        batch = min(2 * batch, largest)
        yield batch


def _bound(last: Trial, batch: int, free: float, limits: Limits) -> str | None:
    growth = batch / last.batch
    seconds = last.slowest * growth
    if seconds > limits.seconds:
        return f"expected to take {seconds:.0f} s a position, {_most(limits)}"
    needed = last.bytes_used * growth
    if needed > USABLE * free:
        return f"expected to take {needed / 1e9:,.1f} GB, where {free / 1e9:,.1f} GB are free"
    return None


def _most(limits: Limits) -> str:
    return f"more than the {limits.seconds:g} s of --position-seconds"
