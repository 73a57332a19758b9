"""Cases are found by name, and a record that contradicts itself is refused."""

from __future__ import annotations

import pytest

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.registry import Absent, Case, Method, Registry, Settings, Target, registry


def _case(name: str) -> Case:
    return Case(name, "Nothing.", setup=lambda settings: [])


def test_cases_come_back_in_order_and_by_part_of_their_name() -> None:
    cases = Registry()
    for name in ("a/one", "b/two", "a/three"):
        cases.add(_case(name))
    assert [case.name for case in cases.matching("a/")] == ["a/one", "a/three"]
    assert [case.name for case in cases.matching(None)] == ["a/one", "b/two", "a/three"]


def test_a_pattern_that_matches_nothing_is_refused_with_the_names() -> None:
    cases = Registry()
    cases.add(_case("a/one"))
    with pytest.raises(ValueError, match=r"'zebra'; the cases are a/one"):
        cases.matching("zebra")


def test_a_name_is_taken_once() -> None:
    cases = Registry()
    cases.add(_case("a"))
    with pytest.raises(ValueError, match="'a' is registered twice"):
        cases.add(_case("a"))


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1.0, "at_most": 2.0}])
def test_a_target_has_exactly_one_bound(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either at_least or at_most"):
        Target("speed", "a", **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize("limits", [{"of_gemm": True}, {"of_copy": True}])
def test_a_share_of_a_limit_is_of_one_method(limits: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="one share of a limit, of one method"):
        Target("share", "a", "b", at_least=0.7, **limits)  # type: ignore[arg-type]
    assert Target("share", "a", at_least=0.7, **limits).of_limit  # type: ignore[arg-type]


def test_a_share_is_of_one_limit() -> None:
    with pytest.raises(ValueError, match="one share of a limit, of one method"):
        Target("share", "a", at_least=0.7, of_gemm=True, of_copy=True)


def test_a_figure_speaks_for_the_method_that_is_to_be_fast() -> None:
    assert Target.faster("ours", "rival", 2).subject == "ours"
    assert Target("growth", "long", "short", at_most=1.5).subject == "long"
    assert Target("peak", "a", at_most=160).subject == "a"


def test_faster_is_the_rivals_time_over_ours() -> None:
    target = Target.faster("ours", "rival", 2)
    assert (target.numerator, target.denominator, target.at_least) == ("rival", "ours", 2)
    assert target.shows == "ours: times as fast as rival"


def test_a_method_is_timed_or_measures_itself() -> None:
    with pytest.raises(ValueError, match="either run or measure"):
        Method("a", check=lambda: None)


@pytest.mark.parametrize(
    ("bounds", "reached", "missed"), [({"at_least": 2}, 2.0, 1.9), ({"at_most": 2}, 2.0, 2.1)]
)
def test_a_target_is_reached_on_the_right_side(
    bounds: dict[str, float], reached: float, missed: float
) -> None:
    target = Target("speed", "a", **bounds)  # type: ignore[arg-type]
    assert target.reached(reached)
    assert not target.reached(missed)


@pytest.mark.parametrize("case", list(registry), ids=lambda case: case.name)
def test_every_target_of_every_case_names_methods_that_the_case_has(case: Case) -> None:
    names = [entry.name for entry in case.setup(Settings(quick=True, threads=1))]
    assert len(set(names)) == len(names)
    for target in case.targets:
        assert {target.numerator, target.denominator or target.numerator} <= set(names)


@pytest.mark.parametrize("case", list(registry), ids=lambda case: case.name)
def test_without_peers_a_peers_row_says_so(case: Case) -> None:
    entries = case.setup(Settings(quick=True, peers=False, threads=1))
    absent = [entry for entry in entries if "fast-transformers" in entry.name]
    assert all(isinstance(entry, Absent) for entry in absent)
    assert all("--peers" in entry.reason for entry in absent if isinstance(entry, Absent))
