"""Cases are found by name and device, and a record that contradicts itself is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.measure.cases import Case, NotMeasured, Registry, Settings, registry
from benchmarks.measure.results import Target

MakeCase = Callable[..., Case]
QUICK = Settings(quick=True, threads=1)


def test_cases_come_back_in_order_and_by_part_of_their_name(make_case: MakeCase) -> None:
    cases = Registry()
    for name in ("a/one", "b/two", "a/three"):
        cases.add(make_case({}, name=name))
    cases.add(make_case({}, name="a/one", device="cuda"))
    assert [case.name for case in cases.matching("a/")] == ["a/one", "a/three"]
    assert [case.name for case in cases.matching()] == ["a/one", "b/two", "a/three"]
    assert [case.device for case in cases.matching("a/", "cuda")] == ["cuda"]
    assert [case.theme for case in cases] == ["a", "b", "a", "a"]


def test_a_pattern_that_matches_nothing_is_refused_with_the_themes(make_case: MakeCase) -> None:
    cases = Registry()
    cases.add(make_case({}, name="a/one"))
    with pytest.raises(ValueError, match=r"got 'zebra'; the themes on cpu are a/ and --list"):
        cases.matching("zebra")


def test_a_name_is_taken_once(make_case: MakeCase) -> None:
    cases = Registry()
    cases.add(make_case({}))
    with pytest.raises(ValueError, match="'fixed/case' is registered twice"):
        cases.add(make_case({}))


@pytest.mark.parametrize("bounds", [{}, {"at_least": 1.0, "at_most": 2.0}])
def test_a_target_has_exactly_one_bound(bounds: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="either at_least or at_most"):
        Target("speed", "a", **bounds)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bounds", "reached", "missed"), [({"at_least": 2}, 2.0, 1.9), ({"at_most": 2}, 2.0, 2.1)]
)
def test_a_target_is_reached_on_the_right_side(
    bounds: dict[str, float], reached: float, missed: float
) -> None:
    target = Target("speed", "a", **bounds)  # type: ignore[arg-type]
    assert target.reached(reached)
    assert not target.reached(missed)


@pytest.mark.parametrize("case", list(registry), ids=lambda case: f"{case.device}-{case.name}")
def test_every_case_has_the_methods_of_its_targets_and_peers_say_why_not(case: Case) -> None:
    makes = case.setup(QUICK)
    for target in case.targets:
        assert set(target.methods) <= set(makes)
    for name in makes:
        if "fast-transformers" in name:
            with pytest.raises(NotMeasured, match="--peers"):
                makes[name]()
