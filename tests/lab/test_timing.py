"""Interleaved rounds within their budget, and samples of as many calls as a short one needs."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_lab.timing import (
    FEWEST_CALLS,
    LEAD_IN_SECONDS,
    MOST_CALLS,
    NotMeasured,
    interleave,
    sample,
    stopwatch,
    time_behind,
)


class FakeClock:
    """Seconds that pass only when a call says so."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls: list[str] = []

    def now(self) -> float:
        return self.seconds

    def timed(self, run: Callable[[], object]) -> float:
        before = self.seconds
        run()
        return self.seconds - before

    def call(self, name: str, *durations: float) -> Callable[[], float]:
        """A call that takes these durations in turn, and then always the last one."""
        left = list(durations)

        def run() -> float:
            self.calls.append(name)
            duration = left.pop(0) if len(left) > 1 else left[0]
            self.seconds += duration
            return duration

        return run


@pytest.fixture
def fake() -> FakeClock:
    return FakeClock()


def test_methods_take_turns(fake: FakeClock) -> None:
    samples, reasons = interleave(
        {"A": fake.call("A", 1.0, 2.0, 4.0), "B": fake.call("B", 3.0)}, seconds=0, rounds=(3, 3)
    )
    assert fake.calls == list("AB") * 3
    assert (samples, reasons) == ({"A": [1.0, 2.0, 4.0], "B": [3.0] * 3}, {})


@settings(max_examples=15)  # each takes a garbage collection of the whole test process
@given(
    duration=st.floats(0.1, 10), seconds=st.floats(0, 200), fewest=st.integers(1, 5),
    more=st.integers(0, 20),
)  # fmt: skip
def test_rounds_stay_within_the_bounds_and_the_budget(
    duration: float, seconds: float, fewest: int, more: int
) -> None:
    fake = FakeClock()
    calls = {name: fake.call(name, duration) for name in "AB"}
    samples, _ = interleave(calls, seconds=seconds, rounds=(fewest, fewest + more), now=fake.now)
    count = len(samples["A"])
    assert fewest <= count <= fewest + more
    assert count == fewest or count * 2 * duration <= seconds * (1 + 1e-9)
    # Nor does it stop early: another round would not have fitted.
    assert count == fewest + more or (count + 1) * 2 * duration > seconds * (1 - 1e-9)


def test_a_method_that_cannot_be_measured_falls_out_and_the_others_go_on(fake: FakeClock) -> None:
    def refuse() -> float:
        raise NotMeasured("does not fit")

    calls = {"A": refuse, "B": fake.call("B", 1.0)}
    samples, reasons = interleave(calls, seconds=0, rounds=(3, 3))
    assert reasons == {"A": "does not fit"}
    assert samples == {"B": [1.0] * 3}


def test_short_calls_are_repeated_until_their_time_is_used(fake: FakeClock) -> None:
    call = fake.call("A", 0.5, 0.125, 0.25, 0.25, 9.0, 0.25)
    assert sample(call, fake.timed, 2.5) == 0.25
    assert fake.calls == ["A"] * (1 + 5)


def test_a_long_call_is_made_once(fake: FakeClock) -> None:
    assert sample(fake.call("A", LEAD_IN_SECONDS), fake.timed, 10.0) == LEAD_IN_SECONDS
    assert fake.calls == ["A"]


@pytest.mark.parametrize(("seconds", "calls"), [(0, FEWEST_CALLS), (1e9, MOST_CALLS)])
def test_the_number_of_calls_is_bounded(fake: FakeClock, seconds: float, calls: int) -> None:
    assert sample(fake.call("A", 9e-1, 0.25), fake.timed, seconds) == 0.25
    assert len(fake.calls) == 1 + calls


def test_the_garbage_collector_stays_out_and_comes_back() -> None:
    seen: list[bool] = []

    def look() -> float:
        seen.append(gc.isenabled())
        return 1.0

    interleave({"A": look}, seconds=0, rounds=(1, 1))
    assert seen == [False]
    assert gc.isenabled()


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
    timed = time_behind(gpu.timed, lambda: gpu.work(0.01, 0.4), gpu.mark)

    def run() -> None:
        for _ in range(launches):
            gpu.work(0.05, 0.02)

    assert [timed(run) for _ in range(3)] == pytest.approx([0.02 * launches] * 3)
