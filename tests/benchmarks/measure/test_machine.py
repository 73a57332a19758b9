"""The machine's limits: what it has no instructions for is not measured."""

from __future__ import annotations

import pytest

from benchmarks.measure import machine
from benchmarks.measure.cases import Settings


@pytest.mark.parametrize("flags", [set(), {"avx2", "avx512f"}, {"amx_bf16"}])
def test_bfloat16_is_measured_where_the_processor_multiplies_it(
    monkeypatch: pytest.MonkeyPatch, flags: set[str]
) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: frozenset(flags))
    limits = machine.measure_limits(Settings(quick=True, threads=1))
    assert limits.gemm_float32 > 0
    assert (limits.gemm_bfloat16 is not None) == ("amx_bf16" in flags)
