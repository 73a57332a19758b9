"""train.py and compare.py as their user runs them: what they leave, resume, refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.apps.app_scripts import PNG, Script, cells
from tests.training.toy import logged

FAST = ["--preset", "smoke", "--steps", 6]
RECORDS = ["config.json", "metrics.jsonl", "summary.json"]
LSH = ["lsh-1", "lsh-4"]


def test_a_run_leaves_numbers_and_a_picture(smoke_run: Path) -> None:
    summary = json.loads((smoke_run / "summary.json").read_text())
    assert (summary["app"], summary["preset"]) == ("copy_task", "smoke")
    assert (summary["dataset"], summary["attention"], summary["seed"]) == ("copy", "linear", 0)
    assert summary["steps"] == 20
    assert set(summary["metrics"]) == {"loss", "accuracy", "sequence_accuracy"}
    assert summary["metrics"]["loss"] == logged(smoke_run)[-1]["loss"]
    assert (smoke_run / "curve.png").read_bytes().startswith(PNG)
    assert (smoke_run / "checkpoints" / "step-20" / "model.safetensors").exists()


@pytest.mark.parametrize("attention", ["linear", "lsh-1"])
def test_a_run_that_lost_its_end_resumes_to_the_same_losses(
    script: Script, tmp_path: Path, attention: str
) -> None:
    run = tmp_path / "run"
    flags = ["--preset", "smoke", "--attention", attention, "--checkpoint-every", 5, "--out", run]
    assert script("train", *flags).code == 0
    lines, summary = logged(run), json.loads((run / "summary.json").read_text())
    weights = (run / "checkpoints" / "step-20" / "model.safetensors").read_bytes()
    for lost in (run / "checkpoints" / "step-20").iterdir():
        lost.unlink()
    (run / "checkpoints" / "step-20").rmdir()
    (run / "summary.json").unlink()
    done = script("train", *flags, "--resume")
    assert done.code == 0, done.stderr
    assert logged(run) == lines
    assert json.loads((run / "summary.json").read_text())["metrics"] == summary["metrics"]
    assert (run / "checkpoints" / "step-20" / "model.safetensors").read_bytes() == weights


def test_compare_draws_tabulates_and_keeps_the_records(script: Script, tmp_path: Path) -> None:
    where = ["--out", tmp_path / "runs", "--publish", tmp_path / "results"]
    done = script("compare", *FAST, *where)
    assert done.code == 0, done.stderr
    results = tmp_path / "results"
    assert sorted(path.name for path in results.iterdir()) == sorted(
        ["curves.png", "table.md", "linear", *LSH, "softmax"]
    )
    assert (results / "curves.png").read_bytes().startswith(PNG)
    table = (results / "table.md").read_text()
    assert table in done.stdout
    rows = cells(table)
    assert list(rows) == ["linear", "softmax", *LSH]
    for name, (updates, parameters, _, loss, *right) in rows.items():
        assert sorted(path.name for path in (results / name).iterdir()) == RECORDS
        summary = json.loads((results / name / "summary.json").read_text())
        metrics = summary["metrics"]
        assert summary["attention"] == name
        assert (updates, parameters) == ("6", f"{summary['parameters']:,}")
        assert float(loss) == pytest.approx(metrics["loss"], rel=1e-2)
        assert right == [f"{metrics['accuracy']:.2%}", f"{metrics['sequence_accuracy']:.1%}"]
    compare_resumes(script, tmp_path, where)


def test_compare_looks_at_where_it_writes_before_it_trains(script: Script, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = script("compare", *FAST, "--out", tmp_path / "runs", "--publish", tmp_path / "file")
    assert done.code == 2 and "file" in done.stderr
    assert not list(tmp_path.rglob("summary.json"))


def compare_resumes(script: Script, folder: Path, where: list[object]) -> None:
    """With --resume finished runs are kept as they are; without it none is touched."""
    summaries = {path: path.read_bytes() for path in (folder / "runs").rglob("summary.json")}
    refused = script("compare", *FAST, *where)
    assert refused.code == 2
    assert "--resume" in refused.stderr
    longer = script("compare", "--preset", "smoke", "--steps", 9, *where, "--resume")
    assert longer.code == 2
    assert "training.steps" in longer.stderr
    again = script("compare", *FAST, *where, "--resume")
    assert again.code == 0, again.stderr
    assert {path: path.read_bytes() for path in summaries} == summaries


def test_more_steps_keep_the_warm_up(script: Script, tmp_path: Path) -> None:
    flags = [*FAST, "--out", tmp_path / "run"]
    assert script("train", *flags).code == 0
    with pytest.warns(UserWarning, match="cosine"):
        longer = script("train", *flags, "--resume", "--steps", 40)
    assert longer.code == 0, longer.stderr
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 40
