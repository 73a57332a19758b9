"""No value for a wrong result; ratios per unit; what a method raises is its row."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from benchmarks.case import Method, Settings
from benchmarks.results import MEASURED, NOT_CORRECT
from benchmarks.runner import run_case
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
