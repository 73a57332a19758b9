"""What has been measured: the records in docs/replication, and what docs/results holds.

Records of different machines and versions are never mixed: each verdict rests on one of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure.machine import Limits, Machine
from benchmarks.report.document import Run
from linattn_core.errors import expected
from replication.claims import Figures
from replication.experiments import EXPERIMENTS, Experiment
from replication.kept import place
from replication.machine import is_committed
from replication.measurement import Measurement, read
from replication.read import document, trainings
from replication.sources import ROOT
from replication.validation import loaded, require_type

FOLDER, RESULTS = ROOT / "docs" / "replication", ROOT / "docs" / "results"
THEMES = ("lengths", "decoding", "generation", "operator", "training")


@dataclasses.dataclass(frozen=True)
class Stored:
    """A measurement, and why it does not speak for this checkout; None where it does."""

    measurement: Measurement
    stale: str | None

    @property
    def trainings(self) -> dict[str, Path]:
        """Its trained runs by name, as far as they are kept."""
        source = self.measurement.source
        return trainings(ROOT / source if source else place(FOLDER, self.measurement))


Best = Mapping[str, Stored]
"""The one measurement of each experiment that verdicts rest on."""


def stored(folder: Path = FOLDER) -> list[Stored]:
    """All that is kept, judged by this checkout's files."""
    records = [record for file in sorted(folder.glob("*.json")) for record in read(file)]
    return [Stored(each, why_stale(each)) for each in [*from_results(), *records]]


def why_stale(measurement: Measurement) -> str | None:
    """Why a measurement does not speak for this checkout; None where it does."""
    if measurement.mixed:
        return "from runs of several commits"
    if not measurement.code:
        return "holds no SHA-256 of the code that was measured"
    if not is_committed(measurement.machine):
        return "measured with uncommitted changes"
    if measurement.experiment not in EXPERIMENTS:
        return "of an experiment that is no more"
    code = EXPERIMENTS[measurement.experiment].code(measurement.device, measurement.preset)
    return None if measurement.code == code else "the code that it depends on has changed"


def best(measurements: Iterable[Stored]) -> dict[str, Stored]:
    """Of each experiment: sound, fresh, large, late."""

    def rank(stored: Stored) -> tuple[bool, bool, bool, str]:
        made = stored.measurement
        return made.sound, stored.stale is None, made.preset == "paper", made.machine.date

    large = (each for each in measurements if each.measurement.preset != "smoke")
    return {each.measurement.experiment: each for each in sorted(large, key=rank)}


def with_runs(measurements: Iterable[Stored]) -> dict[str, Stored]:
    """Of each experiment the measurement whose trained runs are drawn.

    That is the one that verdicts rest on; if it kept no runs, the best of those that did.
    """
    return best(each for each in measurements if each.trainings)


def figures_of(best: Best, name: str) -> Figures:
    """What an experiment measured; nothing where it did not run."""
    return best[name].measurement.figures if name in best else {}


def from_results() -> list[Measurement]:
    """What docs/results holds, read as runs of the preset laptop; stale, each of them."""
    published = (_published(each) for each in EXPERIMENTS.values() if each.published)
    return [measurement for measurement in published if measurement is not None]


def _published(experiment: Experiment) -> Measurement | None:
    folder = RESULTS / experiment.published
    figures = experiment.figures(folder)
    if not figures:
        return None
    machines = list(_machines(experiment, folder))
    if not machines:
        wanted = f"an environment in {experiment.record or 'results.json'}"
        raise ValueError(expected(folder.relative_to(ROOT).as_posix(), wanted, "none"))
    commits = list(dict.fromkeys(machine.commit for machine in machines))
    machine = dataclasses.replace(machines[0], commit=", ".join(commits))
    source = folder.relative_to(ROOT).as_posix()
    return Measurement(
        experiment.name, "laptop", machine, figures, source=source, mixed=len(commits) > 1
    )


def _machines(experiment: Experiment, folder: Path) -> Iterator[Machine]:
    """Those on which a published run was measured."""
    if not experiment.record:
        with document(folder) as measured:
            yield from (run.machine for run in measured.runs)
        return
    for file in sorted(folder.glob(experiment.record)):
        with loaded(file) as record:
            yield from [_of_application(where) for where in _environments(record)]


def _environments(record: Any) -> Iterator[Mapping[str, Any]]:
    """Every environment that an application's record names, wherever in it."""
    if isinstance(record, dict):
        if "environment" in record:
            yield record["environment"]
        for value in record.values():
            yield from _environments(value)


def _of_application(where: Mapping[str, Any]) -> Machine:
    """The machine by an application's record, which names neither day nor processor."""
    machine = Machine(
        date="-",
        commit=where["commit"][:7],
        hardware=f"{where['device']}, {where['platform']}",
        software=f"torch {where['torch']}, Python {where['python']}",
        backends=", ".join(where.get("backends", [])),
        threads=where["threads"],
    )
    require_type(machine, Machine, "environment")
    return machine


def limits() -> Limits:
    """The rates of the machine by the benchmarks, for what things should cost.

    Of the runs of the latest day, the fastest: the others were disturbed.
    """
    runs: list[Run] = []
    for theme in THEMES:
        with document(RESULTS / theme) as measured:
            runs += measured.runs if measured.device == "cpu" else []
    return max(runs, key=lambda run: (run.machine.date, run.limits.gemm_float32)).limits
