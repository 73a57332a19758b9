"""The machine's limits: what it has no instructions for is not measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_code_makes_a_commit_dirty_and_documents_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "code" / "machine.py"))

    def git(*arguments: str) -> None:
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True, capture_output=True)

    def commit() -> str:
        return machine.describe_machine(Settings(threads=1)).commit

    for name in ("code/machine.py", "docs/results.md"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("before\n")
    git("init", "--quiet")
    assert commit() == "uncommitted"
    git("add", ".")
    git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "--quiet", "-m", "first")
    clean = commit()
    (tmp_path / "docs" / "results.md").write_text("after\n")
    assert commit() == clean
    (tmp_path / "code" / "machine.py").write_text("after\n")
    assert commit() == f"{clean}-dirty"
