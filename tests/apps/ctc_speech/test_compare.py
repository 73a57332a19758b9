"""The comparison: equal times, runs that are kept, and what the tables show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from linattn_lab.figures import read_figures
from linattn_models.training import RunFolder
from tests.apps.app_scripts import Script, cells
from tests.apps.ctc_speech.conftest import other_text

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
        f"{name}/per": 100 * metrics[name]["dev_phoneme_error_rate"] for name in NAMES
    }
    table = cells((records / "table.md").read_text())
    for name in NAMES:
        rates = ("phoneme_error_rate", "substitutions", "insertions", "deletions")
        assert table[name][:4] == [f"{metrics[name][rate]:.2%}" for rate in rates]
        assert table[name][5] == str(summaries[name]["steps"])
    assert [table[name][6] for name in NAMES] == ["0.100", "0.200", "0.300"]
    assert (records / "curves.png").stat().st_size > 1_000
    assert (records / "lstm" / "metrics.jsonl").exists()
    assert not list(records.rglob("*.safetensors"))

    # Runs that were begun are named, and those of another corpus refused.
    (out / "lstm" / "summary.json").unlink()
    shutil.rmtree(out / "linear-conv")
    done = script("compare", *flags, "--finished")
    assert done.code == 0, done.stderr
    assert "lstm (unfinished, 3 of 3 updates).\n" in (out / "table.md").read_text()
    assert list(read_figures(out)) == ["linear/per"]
    corpus = other_text(tones, tmp_path / "corpus")
    other = script("compare", *flags, "--data-dir", corpus, "--finished")
    assert other.code == 2 and "corpus_digest of the run" in other.stderr


def test_updates_are_measured_and_the_times_are_kept(
    tones: Path, tmp_path: Path, script: Script
) -> None:
    out = tmp_path / "out"
    flags = [*compare_flags(tones, out), "--attentions", "linear", "--rounds", 1]
    done = script("compare", *flags, "--finished")
    assert (done.code, done.stdout.count("updates, in")) == (2, 0)
    assert "expected a run that has ended, got none" in done.stderr
    timing = json.loads((out / "timings.json").read_text())
    assert timing["seconds"].keys() == {"linear", "linear-conv"}
    assert min(timing["seconds"].values()) > 0
    none = script("compare", *flags, "--attentions")
    assert none.code == 2 and "--attentions: expected one or more" in none.stderr
    other = script("compare", *flags, "--attentions", "lstm")
    assert other.code == 2 and "choose another --out" in other.stderr
