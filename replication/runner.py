"""Runs an experiment's commands, watches time and memory, and leaves a record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks.measure.machine import Limits, Machine
from linattn_core.errors import expected
from replication.experiments import EXPERIMENTS, Experiment, PresetName
from replication.machine import at_commit, key
from replication.measurement import Device, Measurement, Spent, read_or_set_aside, write
from replication.sources import ROOT

RECORD, LOG = "record.json", "output.log"
SECONDS = 0.25  # between two looks at a running command
SIGNALS = ((signal.SIGINT, 300.0), (signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0))
"""What ends a command, and seconds until the next: a training still writes its checkpoint."""
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


class Meter:
    """What a run spends, added to what the earlier runs that it continues have spent."""

    def __init__(self, earlier: Spent | None) -> None:
        self.seconds, self.memory = (earlier.seconds, earlier.memory) if earlier else (0.0, 0.0)
        self.started = time.monotonic()

    def spent(self, least_seconds: float, least_memory: float) -> Spent:
        """So far."""
        seconds = self.seconds + time.monotonic() - self.started
        return Spent(seconds, self.memory, least_seconds, least_memory)


@dataclasses.dataclass(frozen=True)
class Runs:
    """The folders of a preset's runs: by machine, live backends, state of the code and experiment.

    Args:
        folder: of all runs.
        preset: of these.
        machine: this one.
        limits: its rates, by "cpu" or "cuda".
    """

    folder: Path
    preset: PresetName
    machine: Machine
    limits: Callable[[str], Limits]

    def device(self, experiment: Experiment) -> Device:
        """Where it is measured here."""
        on_gpu = torch.cuda.is_available() and self.preset not in experiment.on_cpu
        return "cuda" if on_gpu else "cpu"

    def least_seconds(self, experiment: Experiment) -> float:
        """What the experiment should take at the rates of the device that it runs on."""
        limits = self.limits(self.device(experiment))
        return experiment.expected_cost(self.preset).seconds(limits)

    def of(self, experiment: Experiment) -> tuple[Path, Measurement | None]:
        """Where the experiment's run is, or is to be; and its record if it was begun."""
        owner = self.owner(experiment)
        folder = self.folder_of(self.code(owner), owner.name)
        records = read_or_set_aside(record_file(folder, experiment))
        return folder, records[0] if records else None

    def folder_of(self, code: str, name: str) -> Path:
        """The folder of a run by the SHA-256 of its code, which may have changed since."""
        backends = "+".join(words.split()[0] for words in self.machine.backends.split("; "))
        return self.folder / self.preset / key(self.machine) / backends / code[:12] / name

    def code(self, experiment: Experiment) -> str:
        """The SHA-256 of its code, as it is now."""
        return experiment.code(self.device(experiment), self.preset)

    def owner(self, experiment: Experiment) -> Experiment:
        """The experiment whose run this one reads: itself, or one of the same commands."""
        same = experiment.same.get(self.preset)
        return experiment if same is None else EXPERIMENTS[same]

    def again(self, experiment: Experiment) -> None:
        """Removes what earlier runs left."""
        folder, _ = self.of(experiment)
        shutil.rmtree(folder, ignore_errors=True)
        for each in (experiment, self.owner(experiment)):
            record_file(folder, each).unlink(missing_ok=True)

    def run(self, experiment: Experiment, tick: Tick) -> Measurement:
        """Runs the commands or continues them, and returns the record left beside the folder."""
        folder, earlier = self.of(experiment)
        device, code = self.device(experiment), self.code(experiment)
        machine = at_commit(self.machine, experiment.sources(device))
        record = Measurement(
            experiment.name, self.preset, machine, ended=False, code=code, device=device,
            spent=earlier.spent if earlier else None,
        )  # fmt: skip
        folder.mkdir(parents=True, exist_ok=True)
        file = record_file(folder, experiment)
        write(file, [record])
        least_seconds = self.least_seconds(experiment)
        least_memory, meter = experiment.expected_cost(self.preset).memory, Meter(record.spent)
        try:
            self.execute(experiment, folder, tick, meter)
            if self.code(experiment) != code:
                advice = "run it again, and change no code meanwhile"
                raise ValueError(expected("the code", "the same at the end", "another", advice))
            figures = self.figures(experiment, folder)
            record = dataclasses.replace(record, figures=figures, ended=True)
        except Exception as fault:  # noqa: BLE001 (a reader meets any; the others go on)
            error = f"{type(fault).__name__}: {fault}"
            record = dataclasses.replace(record, error=error, ended=True)
        finally:
            spent = meter.spent(least_seconds, least_memory)
            record = dataclasses.replace(record, spent=spent)
            write(file, [record])
        return record

    def read_again(self, experiment: Experiment) -> Measurement | None:
        """The record of a run that ended well, its figures read anew; None where there is none.

        Readers may have changed since, and what an experiment stands beside may have run since.
        """
        folder, record = self.of(experiment)
        if record is None or not record.sound:
            return None
        record = dataclasses.replace(record, figures=self.figures(experiment, folder))
        write(record_file(folder, experiment), [record])
        return record

    def figures(self, experiment: Experiment, folder: Path) -> dict[str, float]:
        """What the experiment has left in its folder.

        Raises:
            ValueError: nothing, or something else.
        """
        beside = (self.of(EXPERIMENTS[name])[0] for name in experiment.beside)
        figures = experiment.figures(folder, *beside)
        if not figures:
            advice = f"see {LOG} in its folder, or give --again"
            raise ValueError(expected(experiment.name, "figures", "none", advice))
        return {name: float(value) for name, value in figures.items()}

    def execute(self, experiment: Experiment, folder: Path, tick: Tick, meter: Meter) -> None:
        """Runs the commands, unless they have ended already for the experiment that shares them."""
        owner = self.owner(experiment)
        _, ended = self.of(owner)
        if owner is not experiment and ended is not None and ended.sound:
            return
        for words in commands(owner, self.preset, folder):
            watched(words, folder / LOG, tick, meter, hide_gpu=self.device(owner) == "cpu")


def record_file(folder: Path, experiment: Experiment) -> Path:
    """The experiment's record, beside the folder of its run."""
    return folder.parent / f"{experiment.name}-{RECORD}"


def commands(experiment: Experiment, preset: PresetName, folder: Path) -> list[list[str]]:
    """The commands as lists of arguments."""
    places = {"out": folder, "data": data_folder(), "threads": torch.get_num_threads()}
    return [
        [sys.executable, *(word.format(**places) for word in command.split())]
        for command in experiment.commands(preset)
    ]


def watched(command: list[str], log: Path, tick: Tick, meter: Meter, *, hide_gpu: bool) -> None:
    """Runs a command from the repository's root; the meter keeps the bytes that it held.

    Raises:
        RuntimeError: it failed, with its last line.
    """
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if hide_gpu else {})
    with _interruptible(), log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=output, stderr=output, process_group=0
        )
        try:
            while process.poll() is None:
                meter.memory = max(meter.memory, held(process.pid))
                time.sleep(SECONDS)
                tick(SECONDS)
        finally:
            _end(process)
    if process.returncode:
        lines = log.read_text(errors="replace").replace("\r", "\n").split("\n")
        words = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise RuntimeError(f"exit code {process.returncode}: {words[-LAST_WORDS:]}")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Inside, what ends this process raises KeyboardInterrupt, so that no command outlives it.

    That is SIGINT, SIGTERM and, unless `nohup` has it ignored, SIGHUP of a terminal that is closed.
    A script's `nohup ... &` ignores SIGINT, which a command would inherit; handlers it does not.
    Outside the main thread Python allows no signal handlers, and this does nothing.
    """
    previous: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            hangup = [signal.SIGHUP] if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN else []
            for number in (signal.SIGINT, signal.SIGTERM, *hangup):
                previous[number] = signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in previous.items():
            if handler is not None:  # installed from C, which Python cannot put back
                signal.signal(number, handler)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a command that still runs as by Ctrl-C, which in a group of its own it did not see.

    If it goes on, or Ctrl-C is pressed once more, the group is sent the next of `SIGNALS`. What it
    has started ends with it.
    """
    if process.poll() is not None:
        return
    for number, seconds in SIGNALS:
        with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt, ProcessLookupError):
            os.killpg(process.pid, number)
            process.wait(seconds)
            break
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def held(pid: int) -> float:
    """Resident bytes of a process and all that it started."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        return float(sum(each.memory_info().rss for each in family if each.is_running()))
    except psutil.Error:  # one ended meanwhile
        return 0.0
