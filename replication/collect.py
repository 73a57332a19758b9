"""What has been measured: the records in docs/replication, and what docs/results holds.

Records of different machines and versions are never mixed: each verdict rests on one of them.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Limits, Machine
from benchmarks.report import document
from replication.experiments import EXPERIMENTS, RESULTS, Experiment
from replication.experiments.read import loaded
from replication.machine import DIRTY, ROOT, date_of, key, this_machine, why_stale
from replication.measurement import Measurement, read

FOLDER = ROOT / "docs" / "replication"
THEMES = ("lengths", "decoding", "generation", "operator", "training")
COLLECTED, STATUS = "collected.json", "status.json"


@dataclasses.dataclass(frozen=True)
class Status:
    """Which measurements speak for which commit.

    Args:
        commit: of the checkout when the report was made.
        stale: why a measurement is stale, by its name; those that are not are not in it.
    """

    commit: str
    stale: Mapping[str, str]

    def why(self, measurement: Measurement) -> str | None:
        """Why the measurement is stale."""
        return self.stale.get(name_of(measurement))


def name_of(measurement: Measurement) -> str:
    """A measurement's name in the status."""
    machine = measurement.machine
    return f"{measurement.experiment}, {key(machine)}, {machine.commit}"


def from_results() -> list[Measurement]:
    """What docs/results holds, read as runs of the preset laptop."""
    found = (_published(each) for each in EXPERIMENTS.values() if each.published is not None)
    return [measurement for measurement in found if measurement is not None]


def _published(experiment: Experiment) -> Measurement | None:
    assert experiment.published is not None
    folder = ROOT / experiment.published
    figures = experiment.read(folder)
    if not figures:
        return None
    if experiment.record:
        machine = _of_application(loaded(folder / experiment.record))
    else:
        machine = document.read(folder.parent, folder.name, "cpu").entries[0][0].machine
    source = experiment.published.as_posix()
    return Measurement(experiment.name, "laptop", machine, figures, source=source)


def _of_application(record: Mapping[str, Any]) -> Machine:
    """The machine by an application's own record, which names no processor."""
    where = record.get("environment") or record["timing"]["environment"]
    return Machine(
        date=date_of(where["commit"]),
        commit=where["commit"][:12],
        hardware=f"{where['device']}, {where['platform']}",
        software=f"torch {where['torch']}, Python {where['python']}",
        backends=", ".join(where.get("backends", [])),
        threads=where["threads"],
    )


def stored(folder: Path = FOLDER) -> list[Measurement]:
    """All records of the folder."""
    files = sorted(file for file in folder.glob("*.json") if file.name != STATUS)
    return [measurement for file in files for measurement in read(file)]


def judged(measurements: Iterable[Measurement]) -> Status:
    """The status in this checkout."""
    reasons = {
        name_of(each): reason
        for each in measurements
        if (reason := why_stale(each.machine.commit, EXPERIMENTS[each.experiment].sources))
    }
    return Status(this_machine().commit.removesuffix(DIRTY), reasons)


def status(folder: Path = FOLDER) -> Status:
    """The status that was stored."""
    return Status(**json.loads((folder / STATUS).read_text(encoding="utf-8")))


def best(measurements: Iterable[Measurement], status: Status) -> dict[str, Measurement]:
    """The one measurement of each experiment that verdicts rest on: fresh, sound, large, late."""
    ranks = sorted(
        (each for each in measurements if each.preset != "smoke"),
        key=lambda x: (x.sound, status.why(x) is None, x.preset == "paper", x.machine.date),
    )
    return {each.experiment: each for each in ranks}


def limits() -> Limits:
    """The rates of the machine by the latest run of the benchmarks, for what things should cost."""
    runs = [run for theme in THEMES for run in document.read(ROOT / RESULTS, theme, "cpu").runs]
    return max(runs, key=lambda run: run.machine.date).limits
