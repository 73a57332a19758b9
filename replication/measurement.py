"""What an experiment gave, on which machine and by which code: records in JSON."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from benchmarks.measure.machine import Machine
from benchmarks.measure.results import from_record, to_record
from linattn_core.errors import expected, quote
from linattn_models.files import replace_file
from replication.experiments import EXPERIMENTS, PresetName
from replication.validation import reading, require_type

VERSION = 2  # of the records
Device = Literal["cpu", "cuda"]


@dataclasses.dataclass(frozen=True)
class Spent:
    """What a run cost, beside what was computed before.

    Args:
        seconds, memory: measured; bytes are those of all its processes together, at the highest.
        least_seconds, least_memory: by operations and bytes, at the rates of the machine.
    """

    seconds: float
    memory: float
    least_seconds: float
    least_memory: float


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One run of an experiment.

    Args:
        figures: by name; empty when it failed.
        spent: by this run and those that it continued; None where `nox -s paper` did not run it.
        error: why it failed; None when it ended well.
        ended: False while it runs, and after an interruption.
        source: where the figures were read.
        code: SHA-256 of the source files that it depends on, taken before the run; empty where
            nobody took it.
        device: where it was measured.
        mixed: its figures are from runs of several commits.
    """

    experiment: str
    preset: PresetName
    machine: Machine
    figures: Mapping[str, float] = dataclasses.field(default_factory=dict)
    spent: Spent | None = None
    error: str | None = None
    ended: bool = True
    source: str = ""
    code: str = ""
    device: Device = "cpu"
    mixed: bool = False

    @property
    def sound(self) -> bool:
        """True where it ended well."""
        return self.ended and self.error is None


def to_json(measurements: Iterable[Measurement]) -> str:
    """A line for each measurement."""
    lines = (json.dumps(_record(each), separators=(",", ":")) for each in measurements)
    return f'{{"version":{VERSION},"measurements":[\n' + ",\n".join(lines) + "\n]}\n"


def _record(measurement: Measurement) -> Any:
    figures = {name: to_record(float(value)) for name, value in measurement.figures.items()}
    return {**to_record(dataclasses.replace(measurement, figures={})), "figures": figures}


def write(file: Path, measurements: Iterable[Measurement]) -> None:
    """Replaces a file of measurements."""
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, to_json(measurements).encode())


def read(file: Path) -> list[Measurement]:
    """The measurements of a file.

    Raises:
        ValueError: the file is none of ours, or of another version.
    """
    wanted, advice = f"measurements of version {VERSION}", "move it away and measure again"
    with reading(file, wanted, advice):
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["version"] != VERSION:
            raise ValueError(f"it is of version {quote(record['version'])}")
        return [_measurement(each) for each in record["measurements"]]


def read_or_set_aside(file: Path) -> list[Measurement]:
    """The measurements of a file; none of a missing one. A damaged one is renamed, and told of."""
    if not file.exists():
        return []
    try:
        return read(file)
    except ValueError as error:
        aside = file.with_name(f"{file.name}.damaged")
        file.replace(aside)
        print(f"{error}; it is {aside.name} now", file=sys.stderr)
        return []


def _measurement(record: dict[str, Any]) -> Measurement:
    figures = record.pop("figures")
    measurement = dataclasses.replace(from_record(Measurement, record), figures=figures)
    require_type(measurement, Measurement, f"the record of {quote(record['experiment'])}")
    experiment = EXPERIMENTS.get(measurement.experiment)
    pattern = experiment.names if experiment is not None else ""
    for name in figures:
        if pattern and not re.fullmatch(pattern, name):
            raise ValueError(expected("the name of a figure", pattern, quote(name)))
    return measurement
