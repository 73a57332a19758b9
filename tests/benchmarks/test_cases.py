"""Cases are found by name and device."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import benchmarks.cases  # noqa: F401  (registers the cases)
from benchmarks.case import Case, Registry, Settings, registry
from linattn_lab.timing import NotMeasured

MakeCase = Callable[..., Case]
QUICK = Settings(quick=True, threads=1)


def test_cases_come_back_in_order_and_by_part_of_their_name(make_case: MakeCase) -> None:
    cases = Registry(*(make_case({}, name=name) for name in ("a/one", "b/two", "a/three")))
    cases.add(make_case({}, name="a/one", device="cuda"))
    assert [case.name for case in cases.select("a/")] == ["a/one", "a/three"]
    assert [case.name for case in cases.select()] == ["a/one", "b/two", "a/three"]
    assert [case.device for case in cases.select("a/", "cuda")] == ["cuda"]
    assert [case.theme for case in cases] == ["a", "b", "a", "a"]
    with pytest.raises(ValueError, match="zebra"):
        cases.select("zebra")


def test_a_name_is_taken_once(make_case: MakeCase) -> None:
    cases = Registry(make_case({}))
    with pytest.raises(ValueError, match="fixed/case"):
        cases.add(make_case({}))


@pytest.mark.parametrize("case", list(registry), ids=lambda case: f"{case.device}-{case.name}")
def test_every_case_has_the_methods_of_its_ratios_and_peers_say_why_not(case: Case) -> None:
    makes = case.setup(QUICK)
    assert {name for pair in case.ratios for name in pair} <= set(makes)
    for name in makes:
        if "fast-transformers" in name:
            with pytest.raises(NotMeasured, match="--peers"):
                makes[name]()
