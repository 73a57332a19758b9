"""Trained runs are kept beside their record: figures, curves and pictures are of one run."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.measure.machine import Limits, Machine
from replication import collect, paper
from replication.collect import FOLDER, Stored, stored
from replication.experiments import EXPERIMENTS
from replication.kept import LINES, keep, place, thinned
from replication.measurement import Measurement, read
from replication.report import plots, tables
from replication.report.content import compose

LARGEST = 2_000_000  # bytes of all runs that are kept
PNG = b"\x89PNG\r\n\x1a\n"


def trained(folder: Path, bits: float, lines: int = 3) -> None:
    """A run of pixel_generation as training and drawing leave it."""
    (folder / "checkpoints" / "step-9").mkdir(parents=True)
    (folder / "checkpoints" / "step-9" / "model.safetensors").write_bytes(b"weights")
    metrics = {"bits_per_dim": bits, "independent_pixels_bits_per_dim": 2.0, "test_images": 8}
    summary = {"dataset": "mnist", "steps": 900, "train_seconds": 9.0, "metrics": metrics}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.json").write_text('{"training": {"batch_size": 8}}')
    rows = [{"step": 100 + k, "split": "eval", "bits_per_dim": bits + 1 / (k + 1), "seconds": k}
            for k in range(lines)]  # fmt: skip
    rows += [{"step": 100 + k, "split": "train", "loss": bits, "seconds": k} for k in range(9)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in ("samples", "completions", "curve"):
        (folder / f"{name}.png").write_bytes(PNG + folder.name.encode())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of the experiment mnist."""
    for name, bits in (("linear", 1.0), ("softmax", 0.9)):
        trained(tmp_path / "run" / "updates" / name, bits, lines=3 * LINES)
    times = {x: {"equal_time": {"metrics": {"bits_per_dim": 0.8}}} for x in ("linear", "softmax")}
    (tmp_path / "run" / "results.json").write_text(json.dumps({"attentions": times}))
    return tmp_path / "run"


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the records, in the place of docs/replication."""
    folder = tmp_path / "records"
    folder.mkdir()
    monkeypatch.setattr(paper, "ROOT", tmp_path)
    for module in (paper, collect, tables):
        monkeypatch.setattr(module, "FOLDER", folder)
    monkeypatch.setattr(collect, "from_results", list)
    return folder


@pytest.fixture
def measured(machine: Machine, run: Path) -> Measurement:
    return Measurement("mnist", "laptop", machine, EXPERIMENTS["mnist"].figures(run))


def test_what_is_kept_is_small_and_gives_the_same_figures(run: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    keep(run, kept)

    files = {file.relative_to(kept / "updates" / "linear").as_posix()
             for file in (kept / "updates" / "linear").rglob("*")}  # fmt: skip
    names = {"config.json", "metrics.jsonl", "summary.json", "samples.png", "completions.png"}
    assert files == names
    experiment = EXPERIMENTS["mnist"]
    assert experiment.figures(kept) == experiment.figures(run)
    assert experiment.figures(kept)["linear/samples-over-independent"] == 0.5


@given(st.lists(st.sampled_from(["train", "eval"]), max_size=5 * LINES), st.integers(1, 4))
def test_thinned_metrics_are_lines_of_the_metrics(splits: list[str], times: int) -> None:
    lines = [json.dumps({"step": k, "split": x}) for k, x in enumerate(splits * times)]

    left = thinned(lines)

    assert [line for line in lines if line in set(left)] == left  # in order, none changed
    for split in ("train", "eval"):
        before, after = ([line for line in some if f'"{split}"' in line] for some in (lines, left))
        assert len(after) == min(len(before), LINES)
        assert [after[:1], after[-1:]] == [before[:1], before[-1:]]


def test_runs_are_published_with_their_record(
    run: Path, records: Path, measured: Measurement
) -> None:
    failed = dataclasses.replace(measured, figures={}, error="no")

    paper.publish({"mnist": measured}, lambda record: run)
    (run / "updates" / "softmax" / "summary.json").unlink()
    paper.publish({"mnist": failed}, lambda record: run)

    kept = {file.parent.name for file in place(records, measured).rglob("summary.json")}
    assert kept == {"linear", "softmax"}  # those of the record that is kept
    paper.publish({"mnist": measured}, lambda record: run)
    assert {file.parent.name for file in place(records, measured).rglob("summary.json")} == {
        "linear"
    }


def test_plots_and_pictures_are_of_the_run_that_the_verdict_rests_on(
    run: Path, records: Path, measured: Measurement, limits: Limits
) -> None:
    other = dataclasses.replace(
        measured, machine=dataclasses.replace(measured.machine, hardware="another CPU")
    )
    for made, bits in ((measured, 1.25), (other, 1.5)):
        trained_again = run.with_name(f"run-{bits}")
        trained(trained_again / "updates" / "linear", bits)
        paper.publish({"mnist": made}, lambda record, folder=trained_again: folder)

    report = compose([Stored(other, "changed"), Stored(measured, None)], limits)

    mine, others = (f"](runs/{place(records, x).parent.name}/mnist/" for x in (measured, other))
    assert f"{mine}updates/linear/samples.png)" in report.text
    assert others not in report.text
    assert report.plots["mnist"] == plots.longer(Stored(measured, None))
    assert report.plots["mnist"] != plots.longer(Stored(other, "changed"))
    assert "kept no curves" not in report.text


def test_the_caption_says_when_the_curves_are_of_another_run(
    run: Path, records: Path, measured: Measurement, limits: Limits
) -> None:
    other = dataclasses.replace(
        measured, machine=dataclasses.replace(measured.machine, hardware="another CPU")
    )
    paper.publish({"mnist": other}, lambda record: run)

    report = compose([Stored(other, "changed"), Stored(measured, None)], limits)

    words = "The run behind the verdicts kept no curves; these are from another CPU."
    assert words in report.text
    assert "samples.png" not in report.text  # a picture stands for its row's verdict alone


KEPT = [x for x in stored() if x.trainings and not x.measurement.source]


@pytest.mark.parametrize("kept", KEPT, ids=lambda x: f"{x.measurement.experiment}, {x.stale}")
def test_kept_runs_give_the_figures_of_their_record(kept: Stored) -> None:
    measurement = kept.measurement
    figures = EXPERIMENTS[measurement.experiment].figures(place(FOLDER, measurement))

    assert figures == pytest.approx(dict(measurement.figures), rel=1e-3)


def test_kept_runs_belong_to_records_and_stay_small() -> None:
    places = {place(FOLDER, each) for file in FOLDER.glob("*.json") for each in read(file)}

    assert set((FOLDER / "runs").glob("*/*")) <= places
    files = [file for file in (FOLDER / "runs").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < LARGEST
