"""No value for a wrong result; ratios per unit; what a method raises is its row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

from benchmarks.measure.cases import Case, Method, NotMeasured, Settings
from benchmarks.measure.machine import Limits
from benchmarks.measure.results import NOT_CORRECT, CaseResult, Target
from benchmarks.measure.runner import run_case, unmeasured

MakeCase = Callable[..., Case]
Run = Callable[..., CaseResult]


@pytest.fixture
def run(limits: Limits) -> Run:
    """Runs a case, or the methods of one by name."""

    def run(case: Case | dict[str, Method], **settings: bool) -> CaseResult:
        if isinstance(case, dict):
            made = {name: lambda method=method: method for name, method in case.items()}
            case = Case("a", "Methods.", setup=lambda settings: made, rounds=(2, 2))
        return run_case(case, Settings(threads=1, **settings), limits)

    return run


def _measured(seconds: float, **fields: Any) -> Method:
    return Method(lambda: None, measure=lambda: seconds, **fields)


def test_a_method_that_fails_its_check_is_never_run(run: Run) -> None:
    def measure() -> float:
        raise AssertionError("measured although it is wrong")

    wrong = Method(lambda: "the output is off", measure=measure)
    result = run({"right": _measured(1), "wrong": wrong})
    assert result.method("wrong").status == NOT_CORRECT
    assert result.method("wrong").value is None
    assert result.method("wrong").detail == "the output is off"
    assert result.method("right").status == "measured"


def test_all_checks_come_before_any_measurement(run: Run) -> None:
    order: list[str] = []

    def method(name: str) -> Method:
        def measure() -> float:
            order.append(f"measure {name}")
            return 1.0

        return Method(lambda: order.append(f"check {name}"), measure=measure)

    run({"A": method("A"), "B": method("B")})
    assert order == ["check A", "check B", *["measure A", "measure B"] * 2]


@pytest.mark.parametrize(("slow", "reached"), [(4.1, True), (3.9, False)])
def test_a_target_is_judged_by_the_ratio(
    make_case: MakeCase, twice_as_fast: Target, run: Run, slow: float, reached: bool
) -> None:
    (outcome,) = run(make_case({"slow": slow, "fast": 2.0}, targets=(twice_as_fast,))).targets
    assert outcome.value is not None
    assert outcome.value.median == pytest.approx(slow / 2)
    assert outcome.reached is reached


def test_ratios_are_per_unit(make_case: MakeCase, run: Run) -> None:
    made = {"long": lambda: _measured(30, units=10), "short": lambda: _measured(4, units=2)}
    target = Target("growth", "long", "short", at_most=1.5)
    case = make_case({}, setup=lambda settings: made, targets=(target,))
    (outcome,) = run(case).targets
    assert outcome.value is not None
    assert outcome.value.median == pytest.approx(3.0 / 2.0)
    assert outcome.reached


def test_each_method_of_a_series_is_held_against_the_last(make_case: MakeCase, run: Run) -> None:
    values = {"A": 1.0, "B": "gone", "C": 2.0}
    ours, gone, rival = run(make_case(values, series="forward", at=7)).methods
    assert ours.over_last is not None and ours.over_last.median == 2
    assert gone.over_last is None
    assert rival.over_last is not None and rival.over_last.median == 1
    assert run(make_case(values)).method("A").over_last is None


def test_a_target_on_one_method_alone_is_judged_by_its_value(make_case: MakeCase, run: Run) -> None:
    target = Target("a step", "a", at_most=160)
    (outcome,) = run(make_case({"a": 150.0}, targets=(target,))).targets
    assert outcome.value is not None
    assert outcome.value.median == 150
    assert outcome.reached


@pytest.mark.parametrize("peak", [150.0, 170.0, None])
def test_a_target_can_be_the_peak_memory(make_case: MakeCase, run: Run, peak: float | None) -> None:
    target = Target("peak", "a", at_most=160, figure="peak")
    made = {"a": lambda: _measured(1, peak=peak and (lambda: peak))}
    (outcome,) = run(make_case({}, setup=lambda settings: made, targets=(target,))).targets
    assert outcome.reached is (peak and peak <= 160)


def test_a_missing_method_leaves_its_targets_unmeasured(
    make_case: MakeCase, twice_as_fast: Target, run: Run
) -> None:
    result = run(make_case({"fast": 1.0, "slow": "not installed"}, targets=(twice_as_fast,)))
    (outcome,) = result.targets
    assert outcome.value is None
    assert outcome.reached is None
    assert result.method("slow").status == "not installed"


def test_a_quick_run_judges_nothing(make_case: MakeCase, twice_as_fast: Target, run: Run) -> None:
    case = make_case({"slow": 4.0, "fast": 1.0}, targets=(twice_as_fast,))
    (outcome,) = run(case, quick=True).targets
    assert outcome.value is not None
    assert outcome.reached is None


def test_shares_count_operations_and_bytes_per_second(run: Run) -> None:
    methods = {"a": _measured(2, operations=1e9), "b": _measured(2, traffic=1e8, units=5)}
    a, b = run(methods).methods
    assert a.share_of_gemm is not None and b.share_of_copy is not None
    assert a.share_of_fma is not None
    shares = (a.share_of_gemm.median, a.share_of_fma.median, b.share_of_copy.median)
    assert shares == pytest.approx((0.5, 0.25, 0.5))
    assert (a.share_of_copy, b.share_of_gemm, b.share_of_fma) == (None, None, None)


@pytest.mark.parametrize(
    ("figure", "operations", "share"),
    [
        ("gemm", 1.4e9, 0.7),
        ("gemm", 1.3e9, 0.65),
        ("gemm", 0, None),
        ("fma", 2.8e9, 0.7),
        ("fma", 2.6e9, 0.65),
        ("fma", 0, None),
    ],
)
def test_a_target_can_be_a_share_of_a_rate(
    make_case: MakeCase,
    run: Run,
    figure: Literal["gemm", "fma"],
    operations: float,
    share: float | None,
) -> None:
    target = Target("share", "a", at_least=0.7, figure=figure)
    made = {"a": lambda: _measured(2, operations=operations)}
    case = make_case({}, setup=lambda settings: made, targets=(target,))
    (outcome,) = run(case).targets
    if share is None:
        assert (outcome.value, outcome.reached) == (None, None)
    else:
        assert outcome.value is not None and outcome.value.median == pytest.approx(share)
        assert outcome.reached is (share >= 0.7)


def _raising(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "does not fit: no more memory could"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "does not fit: no more"),
        (ValueError("it refuses:\nmore"), "raised ValueError: it refuses:"),
        (NotMeasured("not installed"), "not installed"),
        (ValueError("backend 'cuda' refuses this call: no GPU."), "ValueError: backend 'cuda' ref"),
    ],
)
@pytest.mark.parametrize("where", ["make", "check", "run", "measure"])
def test_what_a_method_raises_is_its_row(
    make_case: MakeCase, run: Run, error: Exception, words: str, where: str
) -> None:
    raising = _raising(error)
    make = {
        "make": raising,
        "check": lambda: Method(raising, run=list),
        "run": lambda: Method(lambda: None, run=raising),
        "measure": lambda: Method(lambda: None, measure=raising),
    }[where]
    made = {"a": make, "b": lambda: _measured(1)}
    result = run(make_case({}, setup=lambda settings: made))
    assert result.method("a").status.startswith(words)
    assert result.method("a").value is None
    assert result.method("b").status == "measured"


def test_a_peak_that_cannot_be_taken_is_none(run: Run) -> None:
    methods = {
        "a": _measured(1, peak=lambda: 6.0, units=2),
        "b": _measured(1, peak=_raising(MemoryError())),
    }
    a, b = run(methods).methods
    assert (a.peak, a.peak_per_unit, b.peak) == (6.0, 3.0, None)
    assert b.status == "measured"


def test_a_case_without_result_says_why_and_leaves_its_targets_open(
    make_case: MakeCase, twice_as_fast: Target
) -> None:
    found = unmeasured(make_case({}, targets=(twice_as_fast,), series="s", at=1), "gone")
    assert [(m.name, m.status) for m in found.methods] == [("every method", "gone")]
    assert found.targets[0].reached is None
    assert found.case.series is None
