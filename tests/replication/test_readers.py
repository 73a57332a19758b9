"""Readers: figures by name from what commands write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linattn_lab.figures import write_figures
from replication import readers


def write_json(file: Path, record: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(record))


def write_run(folder: Path, steps: int = 9, **metrics: float | None) -> None:
    """What a training leaves when it ends."""
    summary = {"seed": 0, "parameters": 1, "train_seconds": 1.0, "environment": {}}
    write_json(folder / "summary.json", summary | {"steps": steps, "metrics": metrics})


def test_a_gpu_is_compared_with_the_cpu_beside_it(tmp_path: Path) -> None:
    seconds = {"cifar10-cuda": 2.0, "cifar10": 1.0, "mnist-cuda": 2.0, "mnist": 6.0}
    for name, value in seconds.items():
        (tmp_path / name).mkdir()
        write_figures(tmp_path / name, {"softmax/1/seconds": value})

    figures = readers.read_beside_cpu(*(tmp_path / name for name in seconds))

    assert figures["softmax/1/seconds"] == 2.0
    assert figures["softmax/1/seconds-cpu"] == 1.0
    assert figures["softmax/largest-cpu-over-gpu"] == 3.0


def test_figures_of_trainings_have_their_names(tmp_path: Path) -> None:
    for name in ("linear", "lsh-1"):
        write_run(tmp_path / "updates" / name)
        write_figures(tmp_path / "updates" / name, {"bits": 2, "updates-drawn": 9})
    write_run(tmp_path / "updates" / "softmax")
    write_figures(tmp_path, {"linear/bits": 1})

    assert readers.read_run(tmp_path) == {
        "linear/bits": 1, "linear/updates-drawn": 9, "lsh-1/bits": 2, "lsh-1/updates-drawn": 9
    }  # fmt: skip


def test_of_several_seeds_the_means_are_read_and_all_curves(tmp_path: Path) -> None:
    lines = [{"step": 1, "split": "train", "seconds": 1.0, "loss": 0.5}]
    for name in ("linear", "linear-seed1"):
        write_run(tmp_path / name)
        write_figures(tmp_path / name, {"loss": 9.0})
        (tmp_path / name / "metrics.jsonl").write_text(json.dumps(lines[0]) + "\n")
    own = {"linear/loss": 1.0, "linear/loss/error": 0.5}
    write_figures(tmp_path, own)

    assert readers.read_run(tmp_path) == own
    assert readers.read_curves(tmp_path) == {"linear": lines, "linear-seed1": lines}
    assert readers.trained_seconds(tmp_path) == 2.0


def test_a_run_without_figures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="figures"):
        readers.read_run(tmp_path)


@given(st.lists(st.sampled_from(["train", "eval"]), max_size=300))
def test_curves_keep_the_ends_of_each_split(splits: list[str]) -> None:
    lines: list[dict[str, Any]] = [{"split": x, "step": n} for n, x in enumerate(splits)]

    thinned = readers.thin_metrics(lines)

    for split in set(splits):
        steps, kept = (
            [x["step"] for x in each if x["split"] == split] for each in (lines, thinned)
        )
        assert len(kept) == min(len(steps), readers.CURVE_POINTS)
        assert kept == sorted(kept)
        assert (kept[0], kept[-1]) == (steps[0], steps[-1])
