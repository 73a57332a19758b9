"""Batches are doubled until a larger one is not faster, or would not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from linattn_lab import batches
from linattn_lab.batches import BestBatch, best_batch
from linattn_lab.throughput import Throughput
from linattn_lab.timing import NotMeasured

CPU = torch.device("cpu")


class Search:
    """A search on a machine whose costs grow as the batch does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.tried = monkeypatch, list[int]()

    def __call__(
        self,
        rate: Callable[[int], float],
        *,
        megabytes_each: float = 0,
        seconds_each: float = 0,
        largest: int = 1_024,
        **limits: Any,
    ) -> BestBatch:
        def time(batch: int) -> Throughput:
            self.tried.append(batch)
            per_second = rate(batch)
            steps = [(0, seconds_each * batch / 2), (1, seconds_each * batch)]
            return Throughput(per_second, 1 / per_second, steps, 0, False)

        def peak(_: torch.device, call: Callable[[], Throughput]) -> tuple[Throughput, float]:
            return call(), megabytes_each * 1e6 * self.tried[-1]

        self.monkeypatch.setattr(batches, "available_memory", lambda _: 1e9)
        self.monkeypatch.setattr(batches, "peak_memory", peak)
        return best_batch(time, CPU, largest=largest, **limits)


@pytest.fixture
def search(monkeypatch: pytest.MonkeyPatch) -> Search:
    return Search(monkeypatch)


def test_ends_where_two_doublings_gain_nothing(search: Search) -> None:
    found = search(lambda batch: min(batch, 16))
    assert (found.batch, found.largest_timed) == (16, 64)
    assert search.tried == [1, 2, 4, 8, 16, 32, 64]


def test_one_bad_size_does_not_end_it(search: Search) -> None:
    assert search(lambda batch: 1.0 if batch == 2 else float(min(batch, 64))).batch == 64


def test_ends_at_the_largest(search: Search) -> None:
    found = search(float, largest=100)
    assert search.tried == [1, 2, 4, 8, 16, 32, 64, 100]
    assert found.batch == 100


def test_nothing_is_tried_that_memory_would_not_hold(search: Search) -> None:
    found = search(float, megabytes_each=30)
    assert search.tried == [1, 2, 4, 8, 16]  # 32 would take 960 MB, and 800 may be used
    assert found.batch == 16


def test_nothing_is_tried_that_would_take_too_long(search: Search) -> None:
    found = search(float, seconds_each=3, most_seconds=20)
    assert (found.batch, search.tried) == (4, [1, 2, 4])


def test_a_search_that_cannot_begin_is_refused(search: Search) -> None:
    with pytest.raises(NotMeasured, match="25 s"):
        search(float, seconds_each=25, most_seconds=20)
    with pytest.raises(ValueError, match="largest"):
        search(float, largest=0)


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_a_batch_that_did_not_fit_after_all_ends_it(search: Search, error: Exception) -> None:
    def rate(batch: int) -> float:
        if batch > 4:
            raise error
        return batch

    found = search(rate)
    assert found.batch == found.largest_timed == 4


def test_faults_are_not_taken_for_a_lack_of_memory(search: Search) -> None:
    def rate(batch: int) -> float:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        search(rate)
