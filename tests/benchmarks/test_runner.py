"""No value for a wrong result; ratios per unit; what a method raises is its row."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.case import Method, Settings
from benchmarks.results import MEASURED, NOT_CORRECT, spread
from benchmarks.runner import lost_case, run_case
from linattn_lab.timing import NotMeasured
from tests.benchmarks.helpers import LIMITS, fixed, make_case, raising

run = partial(run_case, settings=Settings(threads=1), limits=LIMITS)


def test_a_method_that_fails_its_check_is_never_run() -> None:
    broken = raising(AssertionError("measured although it is wrong"))
    wrong = Method(lambda: "the output is off", measure=broken)
    result = run(make_case({"right": 1.0, "wrong": wrong}, ratios=(("wrong", "right"),)))
    found = result.method("wrong")
    assert (found.status, found.value, found.detail) == (NOT_CORRECT, None, "the output is off")
    assert result.method("right").status == MEASURED
    assert result.ratios == ()


def test_all_checks_come_before_any_measurement() -> None:
    order: list[str] = []

    def method(name: str) -> Method:
        check = partial(order.append, f"check {name}")
        return Method(check, measure=lambda: order.append(f"measure {name}") or 1.0)

    run(make_case({"A": method("A"), "B": method("B")}))
    assert order == ["check A", "check B", *["measure A", "measure B"] * 2]


def test_ratios_are_per_unit_and_taken_round_by_round() -> None:
    # A machine that slows down to a tenth after the first round leaves the ratio alone.
    slow, fast = iter([40.0, 400.0]), iter([4.0, 40.0])
    methods = {
        "slow": Method(lambda: None, measure=lambda: next(slow), units=10),
        "fast": Method(lambda: None, measure=lambda: next(fast), units=2),
    }
    result = run(make_case(methods, ratios=(("slow", "fast"),)))
    assert result.ratio("slow", "fast") == (2, 2, 2)
    assert result.ratio("fast", "slow") is None


def test_each_method_of_a_series_is_held_against_the_last() -> None:
    result = run(make_case({"A": 1.0, "B": "gone", "C": 2.0}, series="forward", at=7))
    ratios = {each.denominator: each.value.median for each in result.ratios}
    assert ratios == {"A": 2, "C": 1}
    assert (result.series, result.at) == ("forward", 7)


def test_shares_count_operations_and_bytes_per_second() -> None:
    methods = {"a": fixed(2, operations=1e9), "b": fixed(2, traffic=1e8, units=5)}
    a, b = run(make_case(methods)).methods
    assert (a.share_of_gemm, a.share_of_fma, b.share_of_copy) == pytest.approx((0.5, 0.25, 0.5))
    assert (a.share_of_copy, b.share_of_gemm, b.share_of_fma) == (None, None, None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "does not fit"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "does not fit"),
        (ValueError("it refuses:\nmore"), "raised ValueError: it refuses:"),
        (NotMeasured("not installed"), "not installed"),
        (ValueError("backend 'cuda' refuses this call: no GPU."), "ValueError: backend 'cuda' ref"),
    ],
)
@pytest.mark.parametrize("where", ["make", "check", "run", "measure"])
def test_what_a_method_raises_is_its_row(error: Exception, words: str, where: str) -> None:
    call = raising(error)
    make = {
        "make": call,
        "check": lambda: Method(call, run=list),
        "run": lambda: Method(lambda: None, run=call),
        "measure": lambda: Method(lambda: None, measure=call),
    }[where]
    made = {"a": make, "b": lambda: fixed(1)}
    result = run(make_case({}, setup=lambda settings: made))
    assert result.method("a").status.startswith(words)
    assert result.method("a").value is None
    assert result.method("b").status == MEASURED


def test_a_peak_that_cannot_be_taken_is_none() -> None:
    methods = {
        "a": fixed(1, peak=lambda: 6.0, units=2),
        "b": fixed(1, peak=raising(MemoryError())),
    }
    a, b = run(make_case(methods)).methods
    assert (a.peak, a.peak_per_unit, b.peak) == (6.0, 3.0, None)
    assert b.status == MEASURED


def test_a_case_without_result_says_why() -> None:
    result = lost_case(make_case({}, series="s", at=1), "gone")
    assert [(m.name, m.status) for m in result.methods] == [("every method", "gone")]
    assert result.series is None


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_the_spread_is_ordered_and_within_the_values(values: list[float]) -> None:
    median, low, high = spread(values)
    assert min(values) <= low <= median <= high <= max(values)
