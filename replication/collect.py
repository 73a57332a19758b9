"""What has been measured: the records in docs/replication, and what docs/results holds.

Records of different machines and versions are never mixed: each verdict rests on one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Limits, Machine
from benchmarks.report import document
from replication.experiments import EXPERIMENTS, RESULTS, Experiment
from replication.experiments.read import loaded
from replication.machine import DIRTY, ROOT, digest
from replication.measurement import Measurement, read

FOLDER = ROOT / "docs" / "replication"
THEMES = ("lengths", "decoding", "generation", "operator", "training")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A measurement, and why it does not speak for this checkout; None where it does."""

    measurement: Measurement
    stale: str | None


Best = Mapping[str, Stored]
"""The one measurement of each experiment that verdicts rest on."""


def stored(folder: Path = FOLDER) -> list[Stored]:
    """All that is kept, judged by this checkout's files."""
    files = sorted(folder.glob("*.json"))
    kept = [measurement for file in files for measurement in read(file)]
    return [Stored(each, why_stale(each)) for each in [*from_results(), *kept]]


def why_stale(measurement: Measurement) -> str | None:
    """Why a measurement does not speak for this checkout; None where it does."""
    if measurement.mixed:
        return "from runs of several commits"
    if not measurement.code:
        return "holds no SHA-256 of the code that was measured"
    if measurement.machine.commit.endswith(DIRTY):
        return "measured with uncommitted changes"
    if measurement.experiment not in EXPERIMENTS:
        return "of an experiment that is no more"
    same = measurement.code == digest(EXPERIMENTS[measurement.experiment].sources)
    return None if same else "the code that it depends on has changed"


def best(measurements: list[Stored]) -> dict[str, Stored]:
    """Of each experiment: sound, fresh, large, late."""
    ranks = sorted(
        (each for each in measurements if each.measurement.preset != "smoke"),
        key=lambda x: (
            x.measurement.sound,
            x.stale is None,
            x.measurement.preset == "paper",
            x.measurement.machine.date,
        ),
    )
    return {each.measurement.experiment: each for each in ranks}


def from_results() -> list[Measurement]:
    """What docs/results holds, read as runs of the preset laptop; stale, each of them."""
    found = (_published(each) for each in EXPERIMENTS.values() if each.published is not None)
    return [measurement for measurement in found if measurement is not None]


def _published(experiment: Experiment) -> Measurement | None:
    assert experiment.published is not None
    folder = ROOT / experiment.published
    figures = experiment.read(folder)
    if not figures:
        return None
    if experiment.record:
        files = sorted(folder.glob(experiment.record))
        machines = [_of_application(x) for file in files for x in _environments(loaded(file))]
    else:
        machines = [run.machine for run in document.read(folder.parent, folder.name, "cpu").runs]
    commits = list(dict.fromkeys(machine.commit for machine in machines))
    machine = dataclasses.replace(machines[0], commit=", ".join(commits))
    return Measurement(
        experiment.name, "laptop", machine, figures,
        source=experiment.published.as_posix(), mixed=len(commits) > 1,
    )  # fmt: skip


def _environments(record: Any) -> Iterator[Mapping[str, Any]]:
    """Every environment that an application's record names, wherever in it."""
    if isinstance(record, dict):
        if "environment" in record:
            yield record["environment"]
        for value in record.values():
            yield from _environments(value)


def _of_application(where: Mapping[str, Any]) -> Machine:
    """The machine by an application's record, which names neither day nor processor."""
    return Machine(
        date="-",
        commit=where["commit"][:7],
        hardware=f"{where['device']}, {where['platform']}",
        software=f"torch {where['torch']}, Python {where['python']}",
        backends=", ".join(where.get("backends", [])),
        threads=where["threads"],
    )


def limits() -> Limits:
    """The rates of the machine by the latest run of the benchmarks, for what things should cost."""
    runs = [run for theme in THEMES for run in document.read(ROOT / RESULTS, theme, "cpu").runs]
    return max(runs, key=lambda run: run.machine.date).limits
