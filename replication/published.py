"""What the report shows: records in docs/replication, and results of benchmarks in docs/results."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import benchmarks.figures
from benchmarks.cases import CASES
from benchmarks.document import Results, write_results
from linattn_lab.runs import make_folders
from linattn_lab.store import (
    Record,
    add_record,
    latest_results,
    read_records,
    record_file,
    record_files,
)
from replication.claims import FEW_UPDATES
from replication.experiments import EXPERIMENTS, ROOT, Experiment, Preset
from replication.readers import PICTURES, find_trainings
from replication.records import Evidence, Measurement, read_evidence

FOLDER = ROOT / "docs" / "replication"
RESULTS = ROOT / "docs" / "results"


def read_published() -> list[Evidence]:
    """Returns the measurements that are published."""
    experiments = (each for each in EXPERIMENTS.values() if each.is_benchmark)
    measured = (each for experiment in experiments for each in read_benchmark(experiment))
    return [*read_evidence(FOLDER), *measured]


def try_published() -> None:
    """Refuses a folder that cannot be written, and what is damaged, before hours of work."""
    make_folders(FOLDER)
    read_published()


def read_benchmark(experiment: Experiment) -> Iterator[Evidence]:
    """The latest results of an experiment's cases on each machine, as of the oldest of them."""
    theme = experiment.measures.partition("/")[0]
    for file in record_files(RESULTS, theme):
        records = [keep_cases(each, experiment) for each in read_records(file, Results)]
        records = [each for each in records if each.results]
        if not records:
            continue
        oldest = min(records, key=lambda each: each.date)
        preset = find_preset(experiment, oldest)
        figures = benchmarks.figures.THEMES[theme](latest_results(records))
        if preset and figures:
            measurement = Measurement(preset=preset, figures=figures)
            yield Evidence(experiment.name, Record[Measurement](
                command=oldest.command,
                date=oldest.date,
                commit=oldest.commit,
                machine=oldest.machine,
                results={experiment.name: measurement},
            ))  # fmt: skip


def keep_cases(record: Results, experiment: Experiment) -> Results:
    """The record with the results of the experiment's cases alone."""
    kept = {name: x for name, x in record.results.items() if experiment.measures in name}
    return record.model_copy(update={"results": kept})


def find_preset(experiment: Experiment, record: Results) -> Preset | None:
    """The preset of a command: the paper's if it has the flags of that, else a laptop's."""
    flags, words = experiment.flags.get("paper", ""), record.command.split()
    preset: Preset = "paper" if flags and set(flags.split()) <= set(words) else "laptop"
    fits = record.machine.device == "cpu" or preset not in experiment.on_cpu
    return preset if fits else None


def publish(evidence: Evidence, folder: Path) -> None:
    """Keeps what was measured for the report, and pictures of models that were trained enough."""
    name, same = evidence.experiment, (evidence.experiment, evidence.device)
    dates = [x.record.date for x in read_published() if (x.experiment, x.device) == same]
    if dates and max(dates) > evidence.record.date:
        print(f"{name}: kept is what was measured later, on {max(dates)}.")
    elif EXPERIMENTS[name].is_benchmark:
        publish_cases(folder / name)
    else:
        add_record(record_file(FOLDER.parent, FOLDER.name, evidence.device), evidence.record)
        publish_pictures(evidence, folder / name)


def publish_cases(folder: Path) -> None:
    """Adds the results of benchmarks in a run's folder to those that are published."""
    for file in sorted(folder.glob("*/results*.json")):
        for record in reversed(read_records(file, Results)):
            order = [case.name for case in CASES if case.device == record.machine.device]
            write_results(RESULTS, file.parent.name, record, order)


def publish_pictures(evidence: Evidence, folder: Path) -> None:
    """Keeps the pictures by models that were trained long enough."""
    for attention, run in find_trainings(folder).items():
        if evidence.figures.get(f"{attention}/updates-drawn", FEW_UPDATES) < FEW_UPDATES:
            continue
        for picture in list_pictures(run.path):
            if picture.stem in PICTURES:
                kept = FOLDER / "pictures" / folder.name / f"{attention}-{picture.name}"
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(picture, kept)


def list_pictures(folder: Path) -> list[Path]:
    """The pictures in a folder; a link to a file outside of it is none."""
    own = folder.resolve()
    return [x for x in sorted(folder.glob("*.png")) if x.resolve().is_relative_to(own)]
