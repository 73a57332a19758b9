"""No speed without green; ratios per unit; what is missing stays missing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from benchmarks.machine import Limits
from benchmarks.registry import Absent, Case, Method, Settings, Target
from benchmarks.runner import NOT_CORRECT, CaseResult, run_case

MakeCase = Callable[..., Case]
LIMITS = Limits(gemm_float32=1e9, gemm_bfloat16=4e9, copy_bandwidth=1e8)


def _run(case: Case, **settings: bool) -> CaseResult:
    return run_case(case, Settings(threads=1, **settings), limits=LIMITS)


def _with(case: Case, *more: Method | Absent) -> Case:
    return dataclasses.replace(case, setup=lambda settings: [*case.setup(settings), *more])


def test_a_method_that_fails_its_check_is_never_run(make_case: MakeCase) -> None:
    def run() -> float:
        raise AssertionError("measured although it is wrong")

    wrong = Method("wrong", check=lambda: "the output is off", measure=run)
    result = _run(_with(make_case({"right": 1.0}), wrong))
    assert result.method("wrong").status == NOT_CORRECT
    assert result.method("wrong").samples == ()
    assert result.method("wrong").value is None
    assert result.method("wrong").detail == "the output is off"
    assert result.method("right").status == "measured"


def test_all_checks_come_before_any_measurement() -> None:
    order: list[str] = []

    def method(name: str) -> Method:
        def check() -> None:
            order.append(f"check {name}")

        def measure() -> float:
            order.append(f"measure {name}")
            return 1.0

        return Method(name, check=check, measure=measure)

    case = Case("a", "Order.", setup=lambda _: [method("A"), method("B")], rounds=(1, 1))
    _run(case)
    assert order == ["check A", "check B", "measure A", "measure B"]


@pytest.mark.parametrize(("slow", "reached"), [(4.1, True), (3.9, False)])
def test_a_target_is_judged_by_the_ratio(
    make_case: MakeCase, twice_as_fast: Target, slow: float, reached: bool
) -> None:
    result = _run(make_case({"slow": slow, "fast": 2.0}, targets=(twice_as_fast,)))
    (outcome,) = result.targets
    assert outcome.value is not None
    assert outcome.value.median == pytest.approx(slow / 2)
    assert outcome.reached is reached


def test_ratios_are_per_unit() -> None:
    def setup(_: Settings) -> list[Method | Absent]:
        return [
            Method("long", check=lambda: None, measure=lambda: 30.0, units=10),
            Method("short", check=lambda: None, measure=lambda: 4.0, units=2),
        ]

    case = Case("a", "Units.", setup, targets=(Target("growth", "long", "short", at_most=1.5),))
    (outcome,) = _run(dataclasses.replace(case, rounds=(1, 1))).targets
    assert outcome.value is not None
    assert outcome.value.median == pytest.approx(3.0 / 2.0)
    assert outcome.reached


def test_a_target_on_one_method_alone_is_judged_by_its_value(make_case: MakeCase) -> None:
    target = Target("peak", "a", at_most=160)
    (outcome,) = _run(make_case({"a": 150.0}, quantity="bytes", targets=(target,))).targets
    assert outcome.value is not None
    assert outcome.value.median == 150
    assert outcome.reached


def test_a_missing_method_leaves_its_targets_unmeasured(
    make_case: MakeCase, twice_as_fast: Target
) -> None:
    case = _with(
        make_case({"fast": 1.0}, targets=(twice_as_fast,)), Absent("slow", "not installed")
    )
    result = _run(case)
    (outcome,) = result.targets
    assert outcome.value is None
    assert outcome.reached is None
    assert result.method("slow").status == "not installed"


def test_a_quick_run_judges_nothing(make_case: MakeCase, twice_as_fast: Target) -> None:
    case = make_case({"slow": 4.0, "fast": 1.0}, targets=(twice_as_fast,))
    (outcome,) = _run(case, quick=True).targets
    assert outcome.value is not None
    assert outcome.reached is None


def test_the_share_of_the_gemm_rate_counts_operations_per_second(make_case: MakeCase) -> None:
    method = Method("a", check=lambda: None, measure=lambda: 2.0, operations=1e9)
    share = _run(_with(make_case({}), method)).method("a").share_of_gemm
    assert share is not None
    assert share.median == pytest.approx(0.5)


def test_the_share_of_the_copy_bandwidth_counts_bytes_per_second(make_case: MakeCase) -> None:
    method = Method("a", check=lambda: None, measure=lambda: 2.0, traffic=1e8)
    result = _run(_with(make_case({}), method)).method("a")
    assert result.share_of_copy is not None
    assert result.share_of_copy.median == pytest.approx(0.5)
    assert result.share_of_gemm is None


@pytest.mark.parametrize(("seconds", "reached"), [(1.4, True), (1.5, False)])
def test_a_target_can_be_a_share_of_the_gemm_rate(seconds: float, reached: bool) -> None:
    method = Method("a", check=lambda: None, measure=lambda: seconds, operations=1e9)
    target = Target("share", "a", at_least=0.7, of_gemm=True)
    (outcome,) = _run(Case("a", "Shares.", lambda _: [method], targets=(target,))).targets
    assert outcome.value is not None
    assert outcome.value.median == pytest.approx(1 / seconds)
    assert outcome.reached is reached


def test_a_share_of_what_was_not_counted_is_not_measured(make_case: MakeCase) -> None:
    target = Target("share", "a", at_least=0.7, of_gemm=True)
    (outcome,) = _run(make_case({"a": 1.0}, targets=(target,))).targets
    assert outcome.value is None
    assert outcome.reached is None


def test_a_target_that_names_no_method_is_refused(
    make_case: MakeCase, twice_as_fast: Target
) -> None:
    with pytest.raises(ValueError, match=r"\['fast', 'slow'\] among them"):
        _run(make_case({"fast": 1.0}, targets=(twice_as_fast,)))
