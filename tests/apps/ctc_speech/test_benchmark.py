"""What updates cost: every model on every length, and a failure that costs only itself."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch

from linattn_lab.timing import NotMeasured
from speech.presets import Recipe, smoke
from speech.timing import LONGEST, Noise, Worker, make_typical_lengths, measure_seconds
from tests.apps.app_scripts import Script


def test_lengths_of_an_epoch_are_800_frames_on_average() -> None:
    batches = make_typical_lengths(8, 6)
    lengths = [length for batch in batches for length in batch]
    assert lengths == sorted(lengths) and len(lengths) == 48
    assert sum(lengths) / len(lengths) == pytest.approx(800, rel=0.01)
    assert 0.95 * LONGEST < lengths[-1] <= LONGEST


def test_noise_can_be_aligned_and_is_the_same_every_time() -> None:
    first, again = (Noise().batch(torch.tensor([24, 800])) for _ in range(2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert first["frames"].shape == (2, 800, 40)
    assert (2 * first["target_lengths"] <= first["lengths"]).all()


def test_a_document_with_every_model_that_is_continued(tmp_path: Path, script: Script) -> None:
    flags: list[object] = ["--preset", "smoke", "--lengths", 100, 200, "--frames", 400]
    flags += ["--batch-size", 2, "--batches", 1, "--rounds", 1, "--out", tmp_path]
    flags += ["--attentions", "linear", "softmax"]
    done = script("benchmark", *flags)
    assert done.code == 0, done.stderr
    record = json.loads((tmp_path / "benchmark.json").read_text())
    seconds = {x["attention"]: x["seconds"][0] for x in record["epoch"]}  # of two utterances
    assert record["seconds_per_epoch"] == pytest.approx(
        {name: 37_416 / 2 * seconds[name] for name in ("linear", "softmax")}
    )
    assert [x["lengths"] for x in record["curve"]] == [*2 * [[100] * 4], *2 * [[200] * 2]]
    assert all(len(line["seconds"]) == 1 and line["bytes"] > 0 for line in record["curve"])
    document = (tmp_path / "results.md").read_text()
    assert "| linear" in document and "s of audio in a second" in document
    assert (tmp_path / "costs.png").stat().st_size > 1_000

    # The first batch, which is left, is not measured again.
    stored = json.loads((tmp_path / "points.json").read_text())
    stored["costs"] = [{**cost, "seconds": [5.0]} for cost in stored["costs"][:2]]
    (tmp_path / "points.json").write_text(json.dumps(stored))
    done = script("benchmark", *flags, "--resume")
    assert done.code == 0, done.stderr
    costs = json.loads((tmp_path / "points.json").read_text())["costs"]
    assert len(costs) == 6 and costs[:2] == stored["costs"]
    other = script("benchmark", *flags, "--resume", "--rounds", 2)
    assert other.code == 2 and "--resume" in other.stderr


def kill(recipe: Recipe, lengths: list[int]) -> float:
    os._exit(9)


def lack_memory(recipe: Recipe, lengths: list[int]) -> float:
    raise MemoryError


@pytest.mark.parametrize(("crash", "failure"), [(kill, "killed"), (lack_memory, "did not fit")])
def test_a_worker_outlives_a_batch_that_does_not_fit(crash: object, failure: str) -> None:
    with closing(Worker(smoke("linear"), 1)) as worker:
        with pytest.raises(NotMeasured, match=failure):
            worker.run(crash, [50])  # type: ignore[arg-type]
        assert worker.run(measure_seconds, [50]) > 0
