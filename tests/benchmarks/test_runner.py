"""No value for a wrong result; ratios per unit; what a method raises is its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.case import Case, Method, Settings
from benchmarks.results import MEASURED, NOT_CORRECT, CaseResult, spread
from benchmarks.runner import lost_case, run_case
from linattn_lab.machine import Limits
from linattn_lab.timing import NotMeasured

MakeCase = Callable[..., Case]
Run = Callable[..., CaseResult]


@pytest.fixture
def run(limits: Limits) -> Run:
    """Runs a case, or the methods of one by name."""

    def run(case: Case | dict[str, Method], **fields: Any) -> CaseResult:
        if isinstance(case, dict):
            made = {name: lambda method=method: method for name, method in case.items()}
            case = Case("a", "Methods.", lambda settings: made, rounds=(2, 2), **fields)
        return run_case(case, Settings(threads=1), limits)

    return run


def fixed(seconds: float, **fields: Any) -> Method:
    return Method(lambda: None, measure=lambda: seconds, **fields)


def test_a_method_that_fails_its_check_is_never_run(run: Run) -> None:
    def measure() -> float:
        raise AssertionError("measured although it is wrong")

    wrong = Method(lambda: "the output is off", measure=measure)
    result = run({"right": fixed(1), "wrong": wrong}, ratios=(("wrong", "right"),))
    assert result.method("wrong").status == NOT_CORRECT
    assert result.method("wrong").value is None
    assert result.method("wrong").detail == "the output is off"
    assert result.method("right").status == MEASURED
    assert result.ratios == ()


def test_all_checks_come_before_any_measurement(run: Run) -> None:
    order: list[str] = []

    def method(name: str) -> Method:
        def measure() -> float:
            order.append(f"measure {name}")
            return 1.0

        return Method(lambda: order.append(f"check {name}"), measure=measure)

    run({"A": method("A"), "B": method("B")})
    assert order == ["check A", "check B", *["measure A", "measure B"] * 2]


def test_ratios_are_per_unit_and_taken_round_by_round(run: Run) -> None:
    # A machine that slows down to a tenth after the first round leaves the ratio alone.
    slow, fast = iter([40.0, 400.0]), iter([4.0, 40.0])
    methods = {
        "slow": Method(lambda: None, measure=lambda: next(slow), units=10),
        "fast": Method(lambda: None, measure=lambda: next(fast), units=2),
    }
    result = run(methods, ratios=(("slow", "fast"),))
    assert result.ratio("slow", "fast") == (2, 2, 2)
    assert result.ratio("fast", "slow") is None


def test_each_method_of_a_series_is_held_against_the_last(make_case: MakeCase, run: Run) -> None:
    result = run(make_case({"A": 1.0, "B": "gone", "C": 2.0}, series="forward", at=7))
    ratios = {each.denominator: each.value.median for each in result.ratios}
    assert ratios == {"A": 2, "C": 1}
    assert (result.series, result.at) == ("forward", 7)


def test_shares_count_operations_and_bytes_per_second(run: Run) -> None:
    methods = {"a": fixed(2, operations=1e9), "b": fixed(2, traffic=1e8, units=5)}
    a, b = run(methods).methods
    assert (a.share_of_gemm, a.share_of_fma, b.share_of_copy) == pytest.approx((0.5, 0.25, 0.5))
    assert (a.share_of_copy, b.share_of_gemm, b.share_of_fma) == (None, None, None)


def raise_error(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


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
def test_what_a_method_raises_is_its_row(
    make_case: MakeCase, run: Run, error: Exception, words: str, where: str
) -> None:
    call = raise_error(error)
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


def test_a_peak_that_cannot_be_taken_is_none(run: Run) -> None:
    methods = {
        "a": fixed(1, peak=lambda: 6.0, units=2),
        "b": fixed(1, peak=raise_error(MemoryError())),
    }
    a, b = run(methods).methods
    assert (a.peak, a.peak_per_unit, b.peak) == (6.0, 3.0, None)
    assert b.status == MEASURED


def test_a_case_without_result_says_why(make_case: MakeCase) -> None:
    result = lost_case(make_case({}, series="s", at=1), "gone")
    assert [(m.name, m.status) for m in result.methods] == [("every method", "gone")]
    assert result.series is None


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30))
def test_the_spread_is_ordered_and_within_the_values(values: list[float]) -> None:
    median, low, high = spread(values)
    assert min(values) <= low <= median <= high <= max(values)
