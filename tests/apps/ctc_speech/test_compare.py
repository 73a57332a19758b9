"""The comparison: equal times, runs that are kept, and what the tables show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from linattn_lab.figures import read_figures
from linattn_lab.runs import read_runs
from linattn_models.training import RunFolder
from tests.apps.app_scripts import Script, cells

NAMES = ["linear", "lstm", "linear-conv"]


def compare_flags(tones: Path, out: Path) -> list[object]:
    """Two models of the smoke preset on the bursts, the transformer twice."""
    flags: list[object] = ["--preset", "smoke", "--corpus", "kaldi", "--data-dir", tones]
    flags += ["--attentions", "linear", "lstm", "--convolution", "--minutes", 0.01]
    return [*flags, "--cache", out.parent / "cache", "--out", out]


def write_timings(out: Path, **changes: object) -> None:
    """Times as if they had been measured: 6, 3 and 2 updates fit into 0.6 s."""
    timing = {
        "corpus": "kaldi",
        "preset": "smoke",
        "seconds": {"linear": 0.1, "lstm": 0.2, "linear-conv": 0.3},
        "rounds": 1,
        "environment": {"torch": "2", "device": "cpu", "threads": 1},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "timings.json").write_text(json.dumps({**timing, **changes}))


@pytest.mark.slow
def test_equal_time_is_turned_into_updates_and_ended_runs_are_kept(
    tones: Path, tmp_path: Path, script: Script
) -> None:
    out, records = tmp_path / "out", tmp_path / "records"
    write_timings(out)
    flags = compare_flags(tones, out)
    done = script("compare", *flags)
    assert done.code == 0, done.stderr
    assert {name: RunFolder(out / name).summary()["steps"] for name in NAMES} == {
        "linear": 6,
        "lstm": 3,
        "linear-conv": 2,
    }
    before = {name: (out / name / "summary.json").read_bytes() for name in NAMES}

    again = script("compare", *flags, "--publish", records)
    assert again.code == 0, again.stderr
    assert before == {name: (out / name / "summary.json").read_bytes() for name in NAMES}
    summaries = {name: RunFolder(out / name).summary() for name in NAMES}
    metrics = {name: summary["metrics"] for name, summary in summaries.items()}
    assert read_figures(records) == {
        f"{name}/per": 100 * metrics[name]["phoneme_error_rate"] for name in NAMES
    }
    assert list(cells((records / "table.md").read_text())) == NAMES
    assert (records / "curves.png").stat().st_size > 1_000
    assert {x: run["summary"] for x, run in read_runs(records).items()} == summaries
    assert not list(records.rglob("*.safetensors"))
