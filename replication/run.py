"""Runs an experiment's commands one after the other, and leaves a record."""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from linattn_core.errors import expected
from linattn_lab.machine import Device, describe_machine
from linattn_lab.processes import wait_for
from linattn_lab.store import Record, add_record, current_commit, new_record, record_file
from linattn_models.training import RunFolder
from replication.experiments import ROOT, Experiment, Preset, data_folder
from replication.readers import (
    read_beside_cpu,
    read_curves,
    read_run,
    trained_commits,
    trained_seconds,
)
from replication.records import Measurement

LOG = "output.log"
LAST_WORDS = 300  # characters of a failed command's last line


def run_experiment(experiment: Experiment, preset: Preset, folder: Path) -> Record[Measurement]:
    """Runs or continues an experiment in the folder of a preset's runs, and records it there."""
    name, device, started = experiment.name, experiment.device(preset), time.monotonic()
    error, trained, commit = "", 0.0, current_commit()
    try:
        figures, curves = measure(experiment, preset, folder)
        trained = trained_seconds(folder / name)
        commit = trained_commits(folder / name) or commit
    except Exception as fault:  # noqa: BLE001 (a reader meets any; the other experiments go on)
        figures, curves, error = {}, {}, f"{type(fault).__name__}: {fault}"
    seconds = max(time.monotonic() - started, trained)
    measurement = Measurement(
        preset=preset, seconds=seconds, error=error, figures=figures, curves=curves
    )
    words = f"python -m replication.paper {name} --preset {preset}"
    record = new_record(words, commit, describe_machine(device), {name: measurement})
    add_record(record_file(folder.parent, folder.name, device), record)
    return record


def measure(
    experiment: Experiment, preset: Preset, folder: Path
) -> tuple[dict[str, float], dict[str, list[dict[str, Any]]]]:
    """Runs the commands; returns the figures, and the curves of what they trained."""
    out = folder / experiment.name
    out.mkdir(exist_ok=True)
    for command in experiment.commands(preset):
        run_command(command, out, experiment.device(preset))
    beside = [folder / other for other in experiment.beside]
    figures = read_beside_cpu(out, *beside) if beside else read_run(out)
    for name, value in figures.items():
        if not math.isfinite(value):
            raise ValueError(expected(name, "a finite figure", value))
    return dict(figures), read_curves(out)


def run_command(command: str, out: Path, device: Device) -> None:
    """Runs what follows `python` from the repository's root; its output goes into a log."""
    places: dict[str, object] = {"out": out, "data": data_folder()}
    places["resume"] = "--resume" * RunFolder(out).holds_run()
    words = (word.format(**places) for word in command.split())
    arguments = [sys.executable, *filter(None, words)]
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
    log = out / LOG
    with log.open("ab") as output:
        code = wait_for(arguments, ROOT, env, output)
    if code:
        lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise RuntimeError(f"exit code {code}: {last[-LAST_WORDS:]}")
