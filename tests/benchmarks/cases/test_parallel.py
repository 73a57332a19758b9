"""What two ranks make together agrees with the oracle."""

from __future__ import annotations

import pytest

from benchmarks.case import Case, Settings
from benchmarks.cases.parallel import CASES, TWO


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.name))
def test_two_ranks_make_the_result_of_one(case: Case) -> None:
    assert case.setup(Settings(quick=True, threads=1))[TWO]().check() is None
