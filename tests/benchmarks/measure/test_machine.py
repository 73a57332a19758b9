"""The machine's limits: what it has no instructions for is not measured."""

from __future__ import annotations

import sys

import pytest

from benchmarks.measure import machine
from benchmarks.measure.cases import Settings


def test_the_peak_is_measured_where_linattn_cpu_is_installed() -> None:
    pytest.importorskip("linattn_cpu", reason="linattn-cpu is not installed")
    limits = machine.measure_limits(Settings(quick=True, threads=1))
    assert limits.fma_float32 is not None and limits.fma_float32 > 0


def test_without_linattn_cpu_the_peak_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "linattn_cpu", None)
    assert machine.measure_limits(Settings(quick=True, threads=1)).fma_float32 is None
