"""Cases are found by name and device, and compare methods that they have."""

from __future__ import annotations

import pytest

from benchmarks.case import Settings, select_cases
from benchmarks.cases import CASES
from linattn_lab.timing import NotMeasured
from tests.benchmarks.helpers import make_case


def test_cases_are_selected_by_device_and_part_of_their_name() -> None:
    cases = [make_case({}, name=name) for name in ("a/one", "b/two", "a/three")]
    on_gpu = make_case({}, name="a/one", device="cuda")
    assert select_cases([*cases, on_gpu], "a/") == [cases[0], cases[2]]
    assert select_cases([*cases, on_gpu]) == cases
    assert select_cases([*cases, on_gpu], "a/", "cuda") == [on_gpu]
    with pytest.raises(ValueError, match=r"^--only"):
        select_cases(cases, "zebra")


def test_every_case_has_the_methods_of_its_ratios_and_peers_say_why_not() -> None:
    assert len({(case.device, case.name) for case in CASES}) == len(CASES)
    for case in CASES:
        makes = case.setup(Settings(quick=True, threads=1))
        assert {name for pair in case.ratios for name in pair} <= set(makes), case.name
        for name in makes:
            if "fast-transformers" in name or "transformers'" in name or "LinattnFor" in name:
                with pytest.raises(NotMeasured, match="--peers"):
                    makes[name]()
