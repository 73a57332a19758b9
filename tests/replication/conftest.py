"""What the tests of the replication share: a machine, and experiments that take no time."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmarks.measure.machine import Limits, Machine
from replication.experiments.cost import Cost
from replication.experiments.experiment import Experiment
from replication.experiments.read import flat

WRITES = (
    "import pathlib, sys\n"
    "folder = pathlib.Path(sys.argv[1])\n"
    "runs = folder / 'runs.txt'\n"
    "runs.write_text(runs.read_text() + 'x' if runs.exists() else 'x')\n"
    "(folder / 'figures.json').write_text('{\"figures\": {\"positive\": 2.0}}')\n"
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
def quick(tmp_path: Path) -> Experiment:
    """An experiment that writes a figure, and counts its runs."""
    script = tmp_path / "quick.py"
    script.write_text(WRITES)
    command = f"{script} {{out}}"
    commands = {"smoke": command, "laptop": command, "paper": command}
    return Experiment("quick", "a test", commands, flat, ("replication",), lambda preset: Cost(1e9))


@pytest.fixture
def failing(quick: Experiment, tmp_path: Path) -> Experiment:
    """An experiment whose command ends with an error."""
    script = tmp_path / "failing.py"
    script.write_text("raise SystemExit('it is broken')")
    commands = {"smoke": str(script), "laptop": str(script), "paper": str(script)}
    return dataclasses.replace(quick, name="failing", commands=commands)
