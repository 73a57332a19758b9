"""Interleaved rounds within their budget, and samples of as many calls as a short one needs."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measure.cases import NotMeasured
from benchmarks.measure.results import ratio, spread
from benchmarks.measure.timer import (
    FEWEST_CALLS,
    LEAD_IN_SECONDS,
    MOST_CALLS,
    interleave,
    led,
    sample,
    stopwatch,
)


def test_methods_take_turns(clock: Any) -> None:
    samples, refused = interleave(
        {"A": clock.call("A", 1.0, 2.0, 4.0), "B": clock.call("B", 3.0)}, seconds=0, rounds=(3, 3)
    )
    assert clock.calls == list("AB") * 3
    assert (samples, refused) == ({"A": [1.0, 2.0, 4.0], "B": [3.0] * 3}, {})


@settings(max_examples=15)  # each takes a garbage collection of the whole test process
@given(
    duration=st.floats(0.1, 10), seconds=st.floats(0, 200), fewest=st.integers(1, 5),
    more=st.integers(0, 20),
)  # fmt: skip
def test_rounds_stay_within_the_bounds_and_the_budget(
    new_clock: Callable[[], Any], duration: float, seconds: float, fewest: int, more: int
) -> None:
    clock = new_clock()
    calls = {name: clock.call(name, duration) for name in "AB"}
    samples, _ = interleave(calls, seconds=seconds, rounds=(fewest, fewest + more), now=clock.now)
    taken = len(samples["A"])
    assert fewest <= taken <= fewest + more
    assert taken == fewest or taken * 2 * duration <= seconds * (1 + 1e-9)
    # Nor does it stop early: another round would not have fitted.
    assert taken == fewest + more or (taken + 1) * 2 * duration > seconds * (1 - 1e-9)


def test_a_method_that_cannot_be_measured_falls_out_and_the_others_go_on(clock: Any) -> None:
    def refuse() -> float:
        raise NotMeasured("does not fit")

    calls = {"A": refuse, "B": clock.call("B", 1.0)}
    samples, refused = interleave(calls, seconds=0, rounds=(3, 3))
    assert refused == {"A": "does not fit"}
    assert samples == {"B": [1.0] * 3}


def test_a_long_call_is_made_once(clock: Any) -> None:
    assert sample(clock.call("A", LEAD_IN_SECONDS), clock.timed, 10.0) == LEAD_IN_SECONDS
    assert clock.calls == ["A"]


def test_short_calls_are_repeated_until_their_time_is_used(clock: Any) -> None:
    call = clock.call("A", 0.5, 0.125, 0.25, 0.25, 9.0, 0.25)
    assert sample(call, clock.timed, 2.5) == 0.25
    assert clock.calls == ["A"] * (1 + 5)


@pytest.mark.parametrize(("seconds", "calls"), [(0, FEWEST_CALLS), (1e9, MOST_CALLS)])
def test_the_number_of_calls_is_bounded(clock: Any, seconds: float, calls: int) -> None:
    assert sample(clock.call("A", 9e-1, 0.25), clock.timed, seconds) == 0.25
    assert len(clock.calls) == 1 + calls


def test_the_garbage_collector_stays_out_and_comes_back() -> None:
    seen: list[bool] = []

    def look() -> float:
        seen.append(gc.isenabled())
        return 1.0

    interleave({"A": look}, seconds=0, rounds=(1, 1))
    assert seen == [False]
    assert gc.isenabled()


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_the_spread_is_ordered_and_within_the_values(values: list[float]) -> None:
    median, low, high = spread(values)
    assert min(values) <= low <= median <= high <= max(values)


def test_ratios_are_taken_round_by_round() -> None:
    # A machine that slows down to a tenth after the first round leaves the ratio alone.
    assert ratio([2.0, 20.0, 20.0], [1.0, 10.0, 10.0]) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="argument 2"):
        ratio([1.0], [1.0, 2.0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpus_calls_are_timed_by_its_own_clock() -> None:
    numbers = torch.randn(2, 4_096, 4_096, device="cuda")
    small = sample(lambda: numbers[0, :64] @ numbers[1], stopwatch("cuda"), 0.01)
    large = sample(lambda: numbers[0] @ numbers[1], stopwatch("cuda"), 0.01)
    assert 0 < small < large < 1


class FakeGpu:
    """Runs what it is given in order, each item once the processor has launched it."""

    def __init__(self) -> None:
        self.processor = self.gpu = 0.0

    def work(self, launching: float, working: float) -> None:
        self.processor += launching
        self.gpu = max(self.gpu, self.processor) + working

    def mark(self) -> Callable[[], bool]:
        end = self.gpu
        return lambda: self.processor >= end

    def timed(self, run: Callable[[], object]) -> float:
        start = max(self.gpu, self.processor)
        run()
        return max(self.gpu, self.processor) - start


@pytest.mark.parametrize("launches", [1, 20])
def test_launches_are_no_part_of_a_gpus_time(launches: int) -> None:
    """Twenty that take the processor longer than one lead takes the GPU, as a backward pass."""
    gpu = FakeGpu()
    timed = led(gpu.timed, lambda: gpu.work(0.01, 0.4), gpu.mark)

    def run() -> None:
        for _ in range(launches):
            gpu.work(0.05, 0.02)

    assert [timed(run) for _ in range(3)] == pytest.approx([0.02 * launches] * 3)


def test_a_call_that_waits_for_its_gpu_is_timed_whole() -> None:
    gpu = FakeGpu()
    timed = led(gpu.timed, lambda: gpu.work(0.01, 0.4), gpu.mark)

    def run() -> None:
        gpu.work(0.05, 0.02)
        gpu.processor = gpu.gpu
        gpu.work(0.05, 0.02)

    assert timed(run) == pytest.approx(0.09)
