"""train.py, compare.py and generate.py as their user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.apps.app_scripts import PNG, Script, cells

ATTENTIONS = ["linear", "fixed-decay", "learned-decay", "hedgehog-decay", "window", "softmax"]


def test_it_writes_what_was_asked_for(script: Script, smoke_run: Path) -> None:
    flags = ["--run", smoke_run, "--prompt", "def ", "--length", 20]
    first, again = script("generate", *flags), script("generate", *flags)
    assert first.code == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout.startswith("def ")
    other = script("generate", *flags, "--seed", 1)
    assert other.stdout != first.stdout


def test_a_run_is_not_resumed_on_other_text(script: Script, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for number in range(40):
        (texts / f"{number}.txt").write_text(f"The text of {number}. " * 20)
    flags = ["--preset", "smoke", "--dataset", "files", "--data-dir", texts]
    flags += ["--out", tmp_path / "run", "--steps", 2]
    assert script("train", *flags).code == 0
    assert script("train", *flags, "--resume").code == 0
    for file in texts.iterdir():
        file.write_text(file.read_text().swapcase())  # of the same sizes
    other = script("train", *flags, "--resume")
    assert other.code == 2 and "data_digest" in other.stderr


@pytest.mark.slow
def test_compare_draws_tabulates_and_resumes(script: Script, tmp_path: Path) -> None:
    flags = ["--preset", "smoke", "--steps", 6, "--out", tmp_path / "runs"]
    done = script("compare", *flags, "--publish", tmp_path / "results")
    assert done.code == 0, done.stderr
    results = tmp_path / "results"
    assert (results / "curves.png").read_bytes().startswith(PNG)
    table = (results / "table.md").read_text()
    assert table in done.stdout
    rows = cells(table)
    assert list(rows) == ATTENTIONS
    for name, row in rows.items():
        losses = [
            json.loads((results / f"{name}-seed{seed}" / "summary.json").read_text())["metrics"]
            for seed in (0, 1)
        ]
        mean = sum(each["loss"] for each in losses) / 2
        assert float(row[-1]) == pytest.approx(mean, abs=1e-3)
    assert script("compare", *flags).code == 2
    again = script("compare", *flags, "--resume")
    assert again.code == 0, again.stderr
    assert (tmp_path / "runs" / "table.md").read_text() == table


def test_a_run_of_another_application_writes_nothing(script: Script, tmp_path: Path) -> None:
    done = script("generate", "--run", tmp_path)
    assert done.code == 2 and str(tmp_path) in done.stderr
