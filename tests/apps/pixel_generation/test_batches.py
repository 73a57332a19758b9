"""Batch sizes are doubled until they gain nothing, or would not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pixel_batches import Found, Limits, Trial, best_batch

LIMITS = Limits(largest_batch=1_024, seconds=20)


def search(
    images_per_second: Callable[[int], float],
    *,
    megabytes_each: float = 0,
    seconds_each: float = 0,
    free_megabytes: float = 1_000,
    limits: Limits = LIMITS,
) -> tuple[Found, list[int]]:
    """What is found, and the sizes that were tried, where costs grow as the batch does."""
    tried = []

    def attempt(batch: int) -> Trial:
        tried.append(batch)
        used, slowest = megabytes_each * 1e6 * batch, seconds_each * batch
        return Trial(batch, images_per_second(batch), used, slowest)

    found = best_batch(attempt, lambda: free_megabytes * 1e6, limits)
    return found, tried


def test_ends_where_two_doublings_gain_nothing() -> None:
    found, tried = search(lambda batch: min(batch, 16))
    assert (found.best.batch, found.bounded_by) == (16, None)
    assert tried == [1, 2, 4, 8, 16, 32, 64]


def test_one_bad_size_does_not_end_it() -> None:
    found, _ = search(lambda batch: 1.0 if batch == 2 else float(min(batch, 64)))
    assert found.best.batch == 64


def test_the_best_is_kept_though_later_ones_are_worse() -> None:
    found, tried = search(lambda batch: {1: 1.0, 2: 2.0, 4: 1.5, 8: 1.0}[batch])
    assert (found.best.batch, tried) == (2, [1, 2, 4, 8])


def test_ends_at_the_largest_batch() -> None:
    found, tried = search(float, limits=Limits(largest_batch=100, seconds=20))
    assert tried == [1, 2, 4, 8, 16, 32, 64, 100]
    assert found.best.batch == 100
    assert found.bounded_by == "--largest-batch is 100"


def test_nothing_is_tried_that_memory_would_not_hold() -> None:
    found, tried = search(float, megabytes_each=30)
    assert tried == [1, 2, 4, 8, 16]  # 32 images would take 960 MB, and 800 may be used
    assert found.best.batch == 16
    assert found.bounded_by == ("a batch of 32 was expected to take 1.0 GB, where 1.0 GB are free")


def test_nothing_is_tried_that_would_take_too_long() -> None:
    found, tried = search(float, seconds_each=3)
    assert (found.best.batch, tried) == (4, [1, 2, 4])
    assert found.bounded_by == (
        "a batch of 8 was expected to take 24 s a position, more than the 20 s of "
        "--position-seconds"
    )


def test_one_image_that_takes_too_long_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a position of one image took 25 s, more than the 20 s"):
        search(float, seconds_each=25)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_batch_that_did_not_fit_after_all_ends_it(error: Exception) -> None:
    def rate(batch: int) -> float:
        if batch > 4:
            raise error
        return batch

    found, _ = search(rate)
    assert found.best.batch == 4
    assert found.bounded_by == "a batch of 8 did not fit into memory"


def test_faults_are_not_taken_for_a_lack_of_memory() -> None:
    def rate(batch: int) -> float:
        if batch > 1:
            raise RuntimeError("a fault")
        return 1.0

    with pytest.raises(RuntimeError, match="a fault"):
        search(rate)
