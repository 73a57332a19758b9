"""A child process reports the peak of one call above its inputs."""

from __future__ import annotations

import functools
import operator
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import memory
from benchmarks.cases.memory import make_call
from benchmarks.cases.problem import Problem
from benchmarks.memory import peak_above_inputs
from benchmarks.registry import NotMeasured, Settings

MIB = 2**20
TOLERANCE = 2 * MIB  # the interpreter's own needs, and the kernel's counters per CPU
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_what_a_call_returns_counts_and_its_inputs_do_not() -> None:
    half = b"x" * (32 * MIB)
    peak = peak_above_inputs(
        functools.partial, (operator.add, half, half), tiny=(operator.add, b"", b""), threads=1
    )
    assert peak == pytest.approx(64 * MIB, abs=TOLERANCE)


def test_scratch_that_is_freed_before_the_call_returns_counts() -> None:
    scratch = f"len(b'x' * {48 * MIB})"
    peak = peak_above_inputs(functools.partial, (eval, scratch), tiny=(eval, "0"), threads=1)
    assert peak == pytest.approx(48 * MIB, abs=TOLERANCE)


def test_the_fallback_without_a_high_water_mark_sees_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", tmp_path / "absent" / "clear_refs")
    kept, peak = memory._run_watched(lambda: torch.ones(32 * MIB // 4))
    assert peak >= 32 * MIB
    del kept


def test_a_child_that_dies_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="exit code 7"):
        peak_above_inputs(functools.partial, (os._exit, 7), tiny=(len, ()), threads=1)


def test_a_system_without_proc_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "STATUS", tmp_path / "status")
    with pytest.raises(NotMeasured, match="/proc, which this system lacks"):
        peak_above_inputs(functools.partial, (len, ()), tiny=(len, ()))


@pytest.mark.parametrize("backward", [False, True])
def test_the_case_counts_outputs_and_gradients(backward: bool) -> None:
    call = make_call("softmax SDPA", Problem(32), backward, Settings(threads=1))
    result: Any = call()
    tensors = result if backward else (result,)
    assert [tuple(tensor.shape) for tensor in tensors] == [(1, 8, 32, 64)] * (3 if backward else 1)


def test_the_memory_that_is_free_is_the_kernels_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4000 kB\n")
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    assert memory.available_bytes() == 4000 * 1024


@pytest.mark.parametrize(("most", "left"), [("max", 4000 * 1024), ("1000000", 700_000)])
def test_a_containers_limit_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, most: str, left: float
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable:    4000 kB\n")
    (tmp_path / "memory.max").write_text(most + "\n")
    (tmp_path / "memory.current").write_text("500000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 200000\n")
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    assert memory.available_bytes() == left


def test_where_the_kernel_tells_nothing_half_of_the_machine_is_taken(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "MEMORY", tmp_path / "absent")
    assert memory.available_bytes() == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
