"""train.py and compare.py as their user runs them: what they leave, resume, refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linattn_lab.figures import read_figures
from linattn_lab.runs import RUNS, read_runs
from linattn_lab.tables import figure
from tests.apps.app_scripts import PNG, Script, cells

FAST = ["--preset", "smoke", "--steps", 6]
LSH = ["lsh-1", "lsh-4"]


@pytest.mark.slow
def test_compare_draws_tabulates_and_keeps_the_records(script: Script, tmp_path: Path) -> None:
    where = ["--out", tmp_path / "runs", "--publish", tmp_path / "results"]
    done = script("compare", *FAST, "--rounds", 1, *where)
    assert done.code == 0, done.stderr
    results = tmp_path / "results"
    assert sorted(path.name for path in results.iterdir()) == sorted(
        ["curves.png", "figures.json", "table.md", "timings.json", RUNS]
    )
    assert (results / "curves.png").read_bytes().startswith(PNG)
    table = (results / "table.md").read_text()
    assert table in done.stdout
    rows, figures, runs = cells(table), read_figures(results), read_runs(results)
    assert list(rows) == ["linear", "softmax", *LSH]
    times = json.loads((results / "timings.json").read_text())["seconds"]
    for name, (updates, parameters, seconds, seeds, loss, *right) in rows.items():
        summary = runs[name]["summary"]
        metrics = summary["metrics"]
        assert summary["attention"] == name
        assert (updates, parameters) == ("6", f"{summary['parameters']:,}")
        assert (seconds, seeds) == (figure(times[name]), "1")
        assert float(loss) == pytest.approx(metrics["loss"], rel=1e-2)
        assert figures[f"{name}/loss"] == metrics["loss"]
        assert right == [f"{metrics['accuracy']:.2%}", f"{metrics['sequence_accuracy']:.1%}"]


@pytest.mark.slow
def test_seeds_are_added_to_runs_that_were_made_without_times(
    script: Script, tmp_path: Path
) -> None:
    flags = [*FAST, "--rounds", 1, "--out", tmp_path]
    assert script("compare", *flags).code == 0
    (tmp_path / "timings.json").unlink()
    before = {x: (tmp_path / x / "summary.json").read_bytes() for x in ("linear", *LSH)}
    assert script("compare", *flags, "--seeds", 2).code == 2
    done = script("compare", *flags, "--seeds", 2, "--resume")
    assert done.code == 0, done.stderr
    assert before == {x: (tmp_path / x / "summary.json").read_bytes() for x in before}
    rows = cells((tmp_path / "table.md").read_text())
    losses = [
        json.loads((tmp_path / name / "summary.json").read_text())["metrics"]["loss"]
        for name in ("linear", "linear-seed1")
    ]
    assert losses[0] != losses[1]
    assert rows["linear"][3] == "2"
    assert float(rows["linear"][4].split()[0]) == pytest.approx(sum(losses) / 2, rel=1e-2)


def test_compare_looks_at_where_it_writes_before_it_trains(script: Script, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = script("compare", *FAST, "--out", tmp_path / "runs", "--publish", tmp_path / "file")
    assert done.code == 2 and "file" in done.stderr
    assert not list(tmp_path.rglob("summary.json"))
