"""What updates cost: every model on every length, and a failure that costs only itself."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

import speech.measuring as measuring
from speech.measuring import LONGEST, MEAN, Cost, Noise, Worker, typical_lengths
from speech.presets import smoke
from tests.apps.app_scripts import Script


def test_lengths_are_those_of_the_paper() -> None:
    batches = typical_lengths(8, 6)
    lengths = [length for batch in batches for length in batch]
    assert lengths == sorted(lengths) and len(lengths) == 48
    assert sum(lengths) / len(lengths) == pytest.approx(MEAN, rel=0.01)
    assert 0.95 * LONGEST < lengths[-1] <= LONGEST


def test_noise_can_be_aligned_and_is_the_same_every_time() -> None:
    noise = Noise([24, 800])
    first, again = (noise.batch(noise.indices(step)) for step in (0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["frames"].shape == (2, 800, 40)
    assert (2 * first["target_lengths"] <= first["lengths"]).all()


def test_a_document_with_every_model(tmp_path: Path, script: Script) -> None:
    flags: list[object] = ["--preset", "smoke", "--lengths", 100, 200, "--frames", 400]
    flags += ["--batch-size", 2, "--batches", 1, "--rounds", 1, "--out", tmp_path]
    done = script("benchmark", *flags, "--attentions", "linear", "softmax")
    assert done.code == 0, done.stderr
    record = json.loads((tmp_path / "benchmark.json").read_text())
    assert [line["lengths"] for line in record["curve"]] == 2 * [[100] * 4, [200] * 2]
    assert all(len(line["seconds"]) == 1 and line["bytes"] > 0 for line in record["curve"])
    document = (tmp_path / "benchmark.md").read_text()
    assert "| linear" in document and "s of audio in a second" in document
    assert f"commit {(record['environment']['commit'] or 'unknown')[:9]}." in document
    assert (tmp_path / "costs.png").stat().st_size > 1_000

    # Continued: the first batch, which is left, is not measured again.
    stored = json.loads((tmp_path / "points.json").read_text())
    first = stored["points"][0]["costs"] = [{"seconds": [5.0], "bytes": 1e6, "failure": None}] * 2
    del stored["points"][1:]
    (tmp_path / "points.json").write_text(json.dumps(stored))
    flags += ["--attentions", "linear", "softmax", "--resume"]
    done = script("benchmark", *flags)
    assert done.code == 0, done.stderr
    points = json.loads((tmp_path / "points.json").read_text())["points"]
    assert len(points) == 3 and points[0]["costs"] == first
    assert "4/4" in done.stderr
    other = script("benchmark", *flags, "--rounds", 2)
    assert other.code == 2 and "leave --resume out" in other.stderr


def _kill(*arguments: object) -> None:
    os._exit(9)


def _lack_memory(*arguments: object) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("crash", "failure"),
    [(_kill, "its process was killed"), (_lack_memory, "it did not fit into memory")],
)
def test_a_failure_costs_only_itself(
    crash: object, failure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Worker(smoke("linear"), 1) as worker:
        lost, kept = Cost(), Cost()
        with monkeypatch.context() as patch:
            patch.setattr(measuring, "updated", crash)
            worker.measure([50], lost)
        worker.measure([50], kept)
        worker.measure([50], lost)
    assert lost.failure is not None and failure in lost.failure and not lost.seconds
    assert kept.failure is None and len(kept.seconds) == 1
