"""What is published: experiments that measure benchmarks are read from the results of these."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cases.images import WAYS
from benchmarks.document import Results
from benchmarks.results import MEASURED, CaseResult, MethodResult, Spread
from linattn_lab.machine import Device, Machine
from linattn_lab.store import add_record, record_file
from replication import published
from replication.experiments import EXPERIMENTS
from replication.published import publish, read_benchmark, read_published
from replication.records import Evidence

MNIST, CIFAR10 = (f"images/{shape}/one-image" for shape in ("mnist", "cifar10"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of docs."""
    monkeypatch.setattr(published, "FOLDER", tmp_path / "docs" / "replication")
    monkeypatch.setattr(published, "RESULTS", tmp_path / "docs" / "results")
    return tmp_path / "docs" / "results"


def make_record(date: str, *cases: str, seconds: float = 1.0, flags: str = "") -> Results:
    """A record in which every way takes the same time."""
    value = Spread(seconds, seconds, seconds)
    methods = tuple(MethodResult(name=x, status=MEASURED, value=value) for x in WAYS)
    device: Device = "cuda" if "cuda" in flags else "cpu"
    machine = Machine(
        device=device, hardware="NVIDIA H200, x", software="torch", backends="none", threads=2
    )
    return Results(
        command=f"python -m benchmarks {flags}", date=date, commit=f"of {date}", machine=machine,
        results={case: CaseResult(shows="images", methods=methods) for case in cases},
    )  # fmt: skip


def keep(folder: Path, record: Results) -> None:
    add_record(record_file(folder, "images", record.machine.place), record)


def test_figures_are_of_the_experiment_s_cases_and_dated_by_the_oldest(folder: Path) -> None:
    keep(folder, make_record("2026-11-01", MNIST, CIFAR10, seconds=1.0))
    keep(folder, make_record("2026-11-02", CIFAR10, seconds=2.0))
    keep(folder, make_record("2026-11-03", "images/mnist/best-batch", seconds=0.5))

    known = {each.experiment: each for each in read_published()}

    mnist, cifar10 = (known[f"generation-{shape}"] for shape in ("mnist", "cifar10"))
    assert mnist.figures["linear/1/seconds"] == 1.0
    assert mnist.figures["linear/best/images-per-second"] == 2.0
    assert (mnist.record.date, mnist.record.commit) == ("2026-11-01", "of 2026-11-01")
    assert cifar10.figures["linear/1/seconds"] == 2.0
    assert cifar10.record.date == "2026-11-02"
    assert "linear/best/images-per-second" not in cifar10.figures


@pytest.mark.parametrize(
    ("name", "flags", "preset"),
    [
        ("generation-mnist", "--peers", "laptop"),
        ("generation-mnist", "--whole", "paper"),
        ("generation-mnist", "--device cuda", None),  # of the experiment that stands beside it
    ],
)
def test_the_command_says_the_preset(
    folder: Path, name: str, flags: str, preset: str | None
) -> None:
    keep(folder, make_record("2026-11-01", MNIST, flags=flags))

    measured = [each.measurement.preset for each in read_benchmark(EXPERIMENTS[name])]

    assert measured == ([] if preset is None else [preset])


def test_results_of_benchmarks_are_published_with_those_of_benchmarks(
    folder: Path, tmp_path: Path
) -> None:
    name, runs = "generation-mnist", tmp_path / "runs"
    keep(folder, make_record("2026-11-01", MNIST, CIFAR10, seconds=1.0))
    keep(runs / name, make_record("2026-11-02", MNIST, seconds=3.0))
    (old,) = read_benchmark(EXPERIMENTS[name])

    publish(Evidence(name, old.record.model_copy(update={"date": "2026-11-02"})), runs)

    known = {each.experiment: each for each in read_published()}
    assert known[name].figures["linear/1/seconds"] == 3.0
    assert known[name].record.date == "2026-11-02"
    assert known["generation-cifar10"].figures["linear/1/seconds"] == 1.0
    assert not published.FOLDER.exists()
    assert (folder / "images" / "results.md").exists()
