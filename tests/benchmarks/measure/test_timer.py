"""The timer takes interleaved rounds within its budget and repeats calls that are too short."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.measure.cases import Method, NotMeasured
from benchmarks.measure.results import ratio, spread
from benchmarks.measure.timer import (
    LEAD_IN_SECONDS,
    SAMPLE_SECONDS,
    WARM_UP_CALLS,
    CpuTimer,
    Measured,
    interleave,
    timer,
)


def _taken(clock: Any, methods: dict[str, Method], **given: Any) -> Measured:
    usual = {"seconds": 0, "rounds": (3, 3), "new_clock": clock}
    return interleave(methods, CpuTimer(clock), **{**usual, **given})


def test_methods_take_turns_after_the_warm_up(clock: Any) -> None:
    _taken(clock, {name: clock.method(name, LEAD_IN_SECONDS) for name in "ABC"})
    warm_up = [name for name in "ABC" for _ in range(WARM_UP_CALLS)]
    assert clock.calls == warm_up + list("ABC") * 3


def test_a_sample_is_what_the_call_took(clock: Any) -> None:
    warm = [9.0] * WARM_UP_CALLS
    measured = _taken(clock, {"A": clock.method("A", *warm, 1.0, 2.0, 4.0)})
    assert measured.samples == {"A": [1.0, 2.0, 4.0]}


@settings(max_examples=15)  # each takes a garbage collection of the whole test process
@given(
    duration=st.floats(LEAD_IN_SECONDS, 10), seconds=st.floats(0, 200), fewest=st.integers(1, 5),
    more=st.integers(0, 20),
)  # fmt: skip
def test_rounds_stay_within_the_bounds_and_the_budget(
    new_clock: Callable[[], Any], duration: float, seconds: float, fewest: int, more: int
) -> None:
    clock = new_clock()
    methods = {name: clock.method(name, duration) for name in "AB"}
    measured = _taken(clock, methods, seconds=seconds, rounds=(fewest, fewest + more))
    taken = len(measured.samples["A"])
    assert fewest <= taken <= fewest + more
    assert taken == fewest or taken * 2 * duration <= seconds * (1 + 1e-9)
    # Nor does it stop early: another round would not have fitted.
    assert taken == fewest + more or (taken + 1) * 2 * duration > seconds * (1 - 1e-9)


def test_short_calls_are_repeated_until_a_sample_is_long_enough(clock: Any) -> None:
    duration = SAMPLE_SECONDS / 8
    measured = _taken(clock, {"A": clock.method("A", duration)}, rounds=(2, 2))
    assert len(clock.calls) == WARM_UP_CALLS + 2 * (1 + 8)
    assert measured.samples["A"] == pytest.approx([duration] * 2)


def test_a_short_call_is_led_in_by_one_that_is_not_timed(clock: Any) -> None:
    short, long = LEAD_IN_SECONDS / 2, LEAD_IN_SECONDS
    methods = {
        "A": clock.method("A", short, short, *[9.0, short] * 3),
        "B": clock.method("B", long),
    }
    measured = _taken(clock, methods)
    assert clock.calls[2 * WARM_UP_CALLS :] == ["A", "A", "B"] * 3
    assert measured.samples == {"A": [short] * 3, "B": [long] * 3}


def test_a_method_that_measures_itself_is_asked_once_a_round(clock: Any) -> None:
    answers = iter([3.0, 4.0])
    method = Method(lambda: None, measure=lambda: next(answers))
    assert _taken(clock, {"A": method}, rounds=(2, 2)).samples["A"] == [3.0, 4.0]


def test_a_method_that_cannot_be_measured_falls_out_and_the_others_go_on(clock: Any) -> None:
    def refuse() -> float:
        raise NotMeasured("does not fit")

    methods = {"A": Method(lambda: None, measure=refuse), "B": clock.method("B", 1.0)}
    measured = _taken(clock, methods)
    assert measured.refused == {"A": "does not fit"}
    assert measured.samples == {"B": [1.0] * 3}


def test_the_garbage_collector_stays_out_and_comes_back() -> None:
    seen: list[bool] = []
    method = Method(lambda: None, run=lambda: seen.append(gc.isenabled()))
    interleave({"A": method}, timer("cpu"), seconds=0, rounds=(1, 1))
    assert seen
    assert not any(seen)
    assert gc.isenabled()


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_the_spread_is_ordered_and_within_the_values(values: list[float]) -> None:
    found = spread(values)
    assert min(values) <= found.low <= found.median <= found.high <= max(values)


def test_ratios_are_taken_round_by_round() -> None:
    # A machine that slows down to a tenth after the first round leaves the ratio alone.
    found = ratio([2.0, 20.0, 20.0], [1.0, 10.0, 10.0])
    assert (found.low, found.median, found.high) == (2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="argument 2"):
        ratio([1.0], [1.0, 2.0])


def test_a_long_call_of_an_uneven_case_is_made_once(clock: Any) -> None:
    sample = CpuTimer(clock).prepare(clock.method("A", LEAD_IN_SECONDS).run, 10.0)
    assert sample() == LEAD_IN_SECONDS
    assert clock.calls == ["A"]


def test_of_short_calls_as_many_are_made_as_fit_after_a_first(clock: Any) -> None:
    method = clock.method("A", 0.5, 0.125, 0.25, 0.25, 9.0, 0.25)
    assert CpuTimer(clock).prepare(method.run, 2.5)() == 0.25
    assert clock.calls == ["A"] * (1 + 5)


def test_without_time_for_more_a_short_call_is_made_once_more(clock: Any) -> None:
    assert CpuTimer(clock).prepare(clock.method("A", 0.5, 0.25).run, 0)() == 0.25


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_s_calls_are_timed_by_its_own_clock() -> None:
    numbers = torch.randn(2, 4_096, 4_096, device="cuda")
    small = timer("cuda").prepare(lambda: numbers[0, :64] @ numbers[1])
    large = timer("cuda").prepare(lambda: numbers[0] @ numbers[1])
    assert 0 < small() < large() < 1
