"""train.py, compare.py and generate.py as their user runs them."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from linattn_lab.runs import read_runs
from tests.apps.app_scripts import PNG, Script, cells

ATTENTIONS = ["linear", "fixed-decay", "learned-decay", "hedgehog-decay", "gated", "window"]
ATTENTIONS += ["gated-window", "softmax"]


def test_it_writes_what_was_asked_for(script: Script, smoke_run: Path) -> None:
    flags = [smoke_run, "def ", "--length", 20]
    first, again = script("generate", *flags), script("generate", *flags)
    assert first.code == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout.startswith("def ")
    other = script("generate", *flags, "--seed", 1)
    assert other.stdout != first.stdout


def test_a_chat_continues_its_state_whose_size_stays(
    script: Script, smoke_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("import os\nimport re\nimport io\n"))
    done = script("generate", smoke_run, "--chat", "--length", 5)
    assert done.code == 0, done.stderr
    states = re.findall(r"([\d,]+) bytes after (\d+) positions", done.stdout)
    assert len(states) == 3 and len({size for size, _ in states}) == 1
    read = [int(tokens) for _, tokens in states]
    assert read == sorted(set(read)) and read[-1] >= 3 * 11


def train_flags(texts: Path, out: Path) -> list[object]:
    return ["--preset", "smoke", "--data", texts, "--out", out, "--steps", 2]


@pytest.mark.parametrize("tokenizer", ["characters", "bpe:300", "prepared"])
def test_one_file_is_enough_whatever_the_tokens_are(
    tokenizer: str, script: Script, tmp_path: Path
) -> None:
    if tokenizer != "characters":
        pytest.importorskip("tokenizers")
    text = tmp_path / "poem.txt"
    text.write_text("".join(f"The text of {i}, é. " for i in range(200)), encoding="utf-8")
    flags = [*train_flags(text, tmp_path / "run"), "--tokenizer", tokenizer]
    if tokenizer == "prepared":
        prepare = ["--data", text, "--tokenizer", "bpe:300", "--out", tmp_path / "tokens"]
        assert script("prepare", *prepare).code == 0
        flags = train_flags(tmp_path / "tokens", tmp_path / "run")
    done = script("train", *flags)
    assert done.code == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    metrics = summary["metrics"]
    bits = metrics["loss"] / 0.6931471805599453
    assert metrics["bits_per_byte"] < bits
    written = script("generate", tmp_path / "run", "The é", "--length", 5)
    assert written.code == 0 and written.stdout.startswith("The é"), written.stderr


def test_a_run_is_not_resumed_on_other_text(script: Script, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("".join(f"The text of {i}. " for i in range(99)))
    flags = train_flags(text, tmp_path / "run")
    assert script("train", *flags).code == 0
    assert script("train", *flags, "--resume").code == 0
    text.write_text(text.read_text().swapcase())  # of the same size
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
    rows, runs = cells(table), read_runs(results)
    assert list(rows) == ATTENTIONS
    for name, row in rows.items():
        losses = [runs[f"{name}{end}"]["summary"]["metrics"]["loss"] for end in ("", "-seed1")]
        mean, error = (float(x) for x in row[-1].split(" \u00b1 "))
        assert mean == pytest.approx(sum(losses) / 2, abs=1e-3)
        assert error == pytest.approx(abs(losses[0] - losses[1]), abs=1e-3)
    assert script("compare", *flags).code == 2
    again = script("compare", *flags, "--resume")
    assert again.code == 0, again.stderr
    assert (tmp_path / "runs" / "table.md").read_text() == table
