"""The comparison: equal times, runs that are kept, and what the tables show."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from linattn_models.training import RunFolder
from speech.comparison import comparison_table, list_recipes, model_name
from speech.error_rate import KINDS
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
    assert "--average 2 --finished --no-test" in document
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


def test_names_tell_models_and_seeds_apart() -> None:
    recipes = list_recipes("laptop", ("linear", "lstm"), corpus="an4")
    kernels = {name: recipe.depthwise_kernel for name, recipe in recipes.items()}
    assert kernels == {"linear": 0, "lstm": 0, "linear-conv": 11}
    assert [model_name(x) for x in ("linear", "linear-conv-seed1")] == ["linear", "linear-conv"]


TIMES = {"seconds": {"linear": 0.25}, "bytes": {}, "batches": 10}


def rates(*values: float) -> dict[str, float]:
    """An error rate, and the shares of substitutions, insertions and deletions."""
    return dict(zip(("phoneme_error_rate", *KINDS), values, strict=True))


def linear_run() -> dict[str, Any]:
    """As in results.json; the numbers are all different."""
    return {
        "steps": 9_600,
        "parameters": 1_234_567,
        "metrics": {"phoneme_error_rate": 0.1875},
        "recognition": {
            "selected": "3-gram",
            "dev": {
                "greedy": rates(0.3, 0.1, 0.11, 0.09),
                "selected": rates(0.26, 0.12, 0.08, 0.06),
            },
            "test": {
                "greedy": rates(0.2, 0.07, 0.05, 0.08),
                "selected": rates(0.13, 0.06, 0.02, 0.05),
            },
        },
    }


def read_tables(run: dict[str, Any], average: int) -> list[dict[str, str]]:
    """Of each table the cells of the run, by column."""
    runs = {"linear-seed1": run}
    text = comparison_table({"runs": runs, "timing": TIMES, "average": average})
    tables = []
    for table in text.strip().split("\n\n"):
        header, _, cells = ([x.strip() for x in y.split("|")[1:-1]] for y in table.splitlines())
        tables.append(dict(zip(header, cells, strict=True)))
    return tables


def test_each_cell_is_the_number_that_its_column_names() -> None:
    errors, costs = read_tables(linear_run(), average=5)
    assert errors == {
        "model": "linear-seed1",
        "test, greedy": "20.00%",
        "test, selected": "13.00%",
        "test, last weights": "18.75%",
        "dev, greedy": "30.00%",
        "dev, selected": "26.00%",
        "subst.": "6.00%",
        "ins.": "2.00%",
        "del.": "5.00%",
        "selected": "3-gram",
    }
    assert costs == {
        "model": "linear-seed1",
        "updates": "9,600",
        "s per update": "0.250",
        "s per epoch": "2.50",
        "parameters": "1,234,567",
        "memory": "-",
    }
    assert "test, last weights" not in read_tables(linear_run(), average=1)[0]


def test_without_the_test_set_the_kinds_of_errors_are_those_of_dev() -> None:
    run = linear_run()
    del run["recognition"]["test"]
    errors, _ = read_tables(run, average=5)
    assert list(errors)[:4] == ["model", "dev, greedy", "dev, selected", "subst."]
    assert [errors[x] for x in ("subst.", "ins.", "del.")] == ["12.00%", "8.00%", "6.00%"]
