"""Runs an experiment's command, watches time and memory, and leaves a record."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch

from benchmarks.measure.machine import Limits, Machine
from linattn_core.errors import expected
from replication.experiments import Experiment, PresetName
from replication.machine import ROOT, at_commit, key, why_stale
from replication.measurement import Measurement, Spent, read, write

RECORD, LOG = "record.json", "output.log"
SECONDS = 0.25  # between two looks at a running command
LAST_WORDS = 300  # characters of a failed command's last line

Tick = Callable[[float], object]
"""Called with the seconds that have passed since the last call."""


def data_folder() -> Path:
    """Where data sets are: LINATTN_DATA, or shared/data beside the checkout."""
    return Path(os.environ.get("LINATTN_DATA", ROOT.parent / "shared" / "data"))


def lacking(experiment: Experiment, preset: PresetName) -> str | None:
    """What this machine lacks to run the experiment, and how to get it; None for nothing."""
    need = experiment.needs.get(preset)
    if need is None:
        return None
    there = torch.cuda.is_available() if need == "cuda" else (data_folder() / need).is_dir()
    what = "an NVIDIA GPU" if need == "cuda" else f"the data set {need}"
    return None if there else f"needs {what}: {experiment.missing}"


@dataclasses.dataclass(frozen=True)
class Runs:
    """The folders of a preset's runs: one for each machine, commit and experiment.

    Args:
        folder: of all runs.
        preset: of these.
        machine: this one.
        limits: its rates.
    """

    folder: Path
    preset: PresetName
    machine: Machine
    limits: Limits

    def of(self, experiment: Experiment) -> tuple[Path, Measurement | None]:
        """Where the experiment's run is, or is to be; and its record if it was begun."""
        machine = at_commit(self.machine, experiment.sources)
        mine = self.folder / self.preset / key(machine)
        for file in sorted(mine.glob(f"*/{experiment.name}-{RECORD}")):
            (record,) = read(file)
            same = record.machine.commit == machine.commit
            if record.sound and (same or not why_stale(record.machine.commit, experiment.sources)):
                return file.parent / experiment.name, record
        folder = mine / machine.commit / experiment.name
        file = record_file(folder)
        return folder, read(file)[0] if file.exists() else None

    def run(self, experiment: Experiment, folder: Path, tick: Tick) -> Measurement:
        """Runs the command, and returns the record that it leaves beside the folder."""
        machine = at_commit(self.machine, experiment.sources)
        begun = Measurement(experiment.name, self.preset, machine, ended=False)
        folder.mkdir(parents=True, exist_ok=True)
        write(record_file(folder), [begun])
        cost = experiment.cost(self.preset)
        started, memory = time.monotonic(), 0.0
        try:
            memory = watched(command(experiment, self.preset, folder), folder / LOG, tick)
            figures, error = experiment.read(folder), None
            if not figures:
                raise ValueError(expected(experiment.name, "figures", "none", f"see {LOG}"))
        except (OSError, ValueError, KeyError, RuntimeError) as fault:
            figures, error = {}, f"{type(fault).__name__}: {fault}"
        seconds = time.monotonic() - started
        spent = Spent(seconds, memory, cost.seconds(self.limits), cost.memory)
        record = dataclasses.replace(begun, figures=figures, spent=spent, error=error, ended=True)
        write(record_file(folder), [record])
        return record


def record_file(folder: Path) -> Path:
    """The record of the run in a folder."""
    return folder.parent / f"{folder.name}-{RECORD}"


def command(experiment: Experiment, preset: PresetName, folder: Path) -> list[str]:
    """The command as a list of arguments."""
    words = experiment.commands[preset].split()
    return [sys.executable, *(word.format(out=folder, data=data_folder()) for word in words)]


def watched(command: list[str], log: Path, tick: Tick) -> float:
    """Runs a command from the repository's root; returns the bytes that its processes held.

    Raises:
        RuntimeError: it failed, with its last line.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=output, process_group=0)
    memory = 0.0
    try:
        while process.poll() is None:
            memory = max(memory, held(process.pid))
            time.sleep(SECONDS)
            tick(SECONDS)
    finally:
        # Interrupted: the command ends as by Ctrl-C, which in a group of its own it did not see.
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            process.wait()
    if process.returncode:
        lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise RuntimeError(f"exit code {process.returncode}: {words[-LAST_WORDS:]}")
    return memory


def held(pid: int) -> float:
    """Resident bytes of a process and all that it started."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return float(sum(each.memory_info().rss for each in family if each.is_running()))
    except psutil.Error:  # one ended meanwhile
        return 0.0
