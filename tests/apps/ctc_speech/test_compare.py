"""The comparison: equal times, runs that are kept, and what is published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from linattn_models.training import RunFolder
from speech.comparison import list_recipes, model_name
from tests.apps.app_scripts import Script
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
        "bytes": {"linear": 1e6, "lstm": 2e6, "linear-conv": 3e6},
        "batches": 2,
        "rounds": 1,
        "environment": {"torch": "2", "device": "cpu", "threads": 1},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "timings.json").write_text(json.dumps({**timing, **changes}))


def test_equal_time_is_turned_into_updates_and_ended_runs_are_kept(
    tones: Path, tmp_path: Path, script: Script
) -> None:
    out, records = tmp_path / "out", tmp_path / "records"
    write_timings(out)
    flags = [*compare_flags(tones, out), "--average", 2]
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
    results = json.loads((records / "results.json").read_text())
    assert list(results["runs"]) == NAMES
    assert all({"dev", "test"} <= run["recognition"].keys() for run in results["runs"].values())
    document = (records / "results.md").read_text()
    assert "the mean of the last 2 checkpoints' weights" in document
    assert document.count("| linear-conv |") == 2 and "Not in the tables" not in document
    assert (records / "curves.png").stat().st_size > 1_000
    assert (records / "lstm" / "metrics.jsonl").exists()
    assert not list(records.rglob("*.safetensors"))

    # Runs that were begun are named, and those of another budget or corpus refused.
    (out / "lstm" / "summary.json").unlink()
    shutil.rmtree(out / "linear-conv")
    done = script("compare", *flags, "--finished", "--no-test")
    assert done.code == 0, done.stderr
    document = (out / "results.md").read_text()
    assert "Not in the tables: lstm (unfinished, 3 of 3 updates).\n" in document
    assert "--average 2 --no-test" in document and "--finished" not in document
    assert "test, " not in document and "dev, selected" in document
    other = script("compare", *flags, "--finished", "--minutes", 0.02)
    assert other.code == 2 and "training.steps of the run" in other.stderr
    other = script("compare", *flags, "--finished", "--utterances", 5)
    assert other.code == 2 and "utterances of the run" in other.stderr
    other = script("compare", *flags, "--finished", "--bad-input", "skip")
    assert other.code == 2 and "bad_input of the run" in other.stderr
    corpus = other_text(tones, tmp_path / "corpus")
    for finished in ([], ["--finished"]):
        other = script("compare", *flags, "--data-dir", corpus, *finished)
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
    assert timing["seconds"].keys() == timing["bytes"].keys() == {"linear", "linear-conv"}
    assert min(timing["seconds"].values()) > 0 and timing["batches"] >= 1
    other = script("compare", *flags, "--attentions", "lstm")
    assert other.code == 2 and "choose another --out" in other.stderr


@pytest.mark.parametrize(
    ("flag", "values"),
    [("minutes", [0]), ("seeds", [0, 0]), ("seeds", [-1]), ("average", [0]), ("average", [3])],
)
def test_numbers_out_of_range(flag: str, values: list[int], tmp_path: Path, script: Script) -> None:
    flags = [f"--{flag}", *values, "--out", tmp_path / "out"]
    done = script("compare", "--preset", "smoke", *flags)
    assert done.code == 2 and f"--{flag}: expected" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_damaged_timing_is_refused(tones: Path, tmp_path: Path, script: Script) -> None:
    write_timings(tmp_path / "out", seconds={"linear": -1})
    done = script("compare", *compare_flags(tones, tmp_path / "out"))
    assert done.code == 2 and "expected the times of updates" in done.stderr


def test_names_tell_models_and_seeds_apart() -> None:
    recipes = list_recipes("laptop", ("linear", "lstm"), convolution=True, corpus="an4")
    kernels = {name: recipe.depthwise_kernel for name, recipe in recipes.items()}
    assert kernels == {"linear": 0, "lstm": 0, "linear-conv": 11}
    assert [model_name(x) for x in ("linear", "linear-conv-seed1")] == ["linear", "linear-conv"]
