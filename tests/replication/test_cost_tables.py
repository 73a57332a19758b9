"""What language models cost: measured on a CPU, and at most on a GPU."""

from __future__ import annotations

import pytest

from benchmarks.cases.costs import ALONE, PARAMETERS, STATE, TOGETHER, TRAINING
from benchmarks.results import MethodResult, Spread
from linattn_lab.machine import Limits
from replication.cost_tables import most_tokens

LIMITS = Limits(gemm_float32=1.0, gemm_bfloat16=6e6, copy_bandwidth=3_000.0)


def method(name: str, parameters: float = 1_000, state: float = 500) -> MethodResult:
    figures = {PARAMETERS: parameters, STATE: state}
    return MethodResult(name=name, status="measured", value=Spread(1, 1, 1), figures=figures)


def test_the_least_work_decides_the_most_tokens() -> None:
    # 6 operations for each parameter; 2 bytes for each, and a state that is read and written.
    assert most_tokens(method(TRAINING), LIMITS) == pytest.approx(1_000)
    assert most_tokens(method(ALONE), LIMITS) == pytest.approx(1)
    assert most_tokens(method(TOGETHER), LIMITS) == pytest.approx(64 * 3_000 / 66_000)


def test_what_is_not_known_is_no_number() -> None:
    assert most_tokens(method(TRAINING), None) is None
    assert most_tokens(MethodResult(name=ALONE, status="does not fit"), LIMITS) is None
