"""What the tests of the replication share: a machine, and experiments that take no time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.measure.machine import Limits, Machine
from replication.cost import COSTS, Cost
from replication.experiments import Experiment

WRITES = (
    "import pathlib, sys\n"
    "folder = pathlib.Path(sys.argv[-1])\n"
    "runs = folder / 'runs.txt'\n"
    "runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')\n"
    "(folder / 'figures.json').write_text('{\"positive\": 2.0}')\n"
)


@pytest.fixture
def machine() -> Machine:
    """A machine that is not this one."""
    return Machine("2026-11-21", "abc1234", "a CPU, 2 cores", "torch 2.13.0", "cpu", 2)


@pytest.fixture
def limits() -> Limits:
    """Of a machine with round numbers."""
    return Limits(1e9, None, 1e9)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Experiment:
    """An experiment that writes a figure, and counts its runs."""
    monkeypatch.setitem(COSTS, "quick", lambda preset: Cost(1e9))
    script = tmp_path / "quick.py"
    script.write_text(WRITES)
    return Experiment("quick", "a test", str(script), "flat", "steps", cost="quick")


@pytest.fixture
def failing(quick: Experiment, tmp_path: Path) -> Experiment:
    """An experiment whose command ends with an error."""
    script = tmp_path / "failing.py"
    script.write_text("raise SystemExit('it is broken')")
    return dataclasses.replace(quick, name="failing", command=str(script))
