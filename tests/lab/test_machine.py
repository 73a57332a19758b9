"""The machine's limits: what it has no instructions for is not measured."""

from __future__ import annotations

import pytest

from linattn_lab.machine import describe_machine, measure_limits


def test_the_machine_names_its_versions() -> None:
    machine = describe_machine(threads=3)
    assert machine.threads == 3
    assert "torch" in machine.software and "cores" in machine.hardware


def test_the_rate_of_multiply_adds_is_measured_where_linattn_cpu_is_installed() -> None:
    pytest.importorskip("linattn_cpu", reason="linattn-cpu is not installed")
    limits = measure_limits(threads=1, quick=True)
    assert limits.fma_float32 is not None and limits.fma_float32 > 0
    assert limits.gemm("cpu") == limits.gemm_float32 > 0
    assert limits.gemm("cuda") is None


def test_without_linattn_cpu_it_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("linattn_lab.machine.backends", lambda: ("reference",))
    assert measure_limits(threads=1, quick=True).fma_float32 is None
