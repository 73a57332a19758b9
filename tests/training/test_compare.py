"""Runs side by side: which are made, kept or refused, and within which budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from linattn_models.training import (
    RunFolder,
    TrainingFlags,
    copy_records,
    measure_updates,
    require_run,
    run_summary,
    trained_run,
    updates_within,
    with_steps,
)
from tests.training.toy import Crash, CrashingData, ToyData, logged, toy_loss, toy_model, toy_run


def test_a_run_is_made_then_kept_then_resumed_if_it_lost_its_end(out: Path) -> None:
    resumed: list[bool] = []

    def train(resume: bool, **changes: Any) -> None:
        resumed.append(resume)
        toy_run(out, steps=4, checkpoint_every=2, resume=resume, **changes)

    with pytest.raises(Crash):
        trained_run(out, lambda resume: train(resume, data=CrashingData(3)), {})
    for _ in range(2):
        assert trained_run(out, train, {"training.steps": 4}).summary()["steps"] == 4
    assert resumed == [False, True]
    trained_run(out, train, {}, ended=lambda summary: "tested" in summary)
    assert resumed == [False, True, True]


def test_a_run_of_another_configuration_is_refused(unbroken: Path) -> None:
    run = RunFolder(unbroken)
    require_run(run, {"app": "toy", "training.steps": 12, "model.width": 8})
    with pytest.raises(ValueError, match=r"training\.steps of the run in .*: expected 9, got 12"):
        require_run(run, {"app": "toy", "training.steps": 9})
    with pytest.raises(ValueError, match="expected a run of other, got one of toy"):
        run_summary(run, "other")
    assert run_summary(run, "toy") == run.summary()


def test_records_are_copied_without_weights(unbroken: Path, tmp_path: Path) -> None:
    copy_records(RunFolder(unbroken), tmp_path / "records")
    names = sorted(path.name for path in (tmp_path / "records").iterdir())
    assert names == ["config.json", "metrics.jsonl", "summary.json"]
    assert logged(tmp_path / "records") == logged(unbroken)


def test_as_many_updates_as_fit_into_a_time() -> None:
    assert updates_within(1.0, 0.3) == 3
    assert updates_within(7 * 0.1, 0.1) == 7  # 0.7000000000000001
    assert updates_within(0.01, 0.3) == 1


@pytest.mark.parametrize("steps", [1, 9, 400])
def test_other_steps_keep_eight_evaluations(steps: int) -> None:
    flags = with_steps(TrainingFlags(steps=100, batch_size=2, eval_every=20), steps)
    assert flags.steps == steps
    assert flags.eval_every == min(20, max(1, steps // 8)) and flags.checkpoint_every is not None


def test_updates_are_timed_for_every_model() -> None:
    flags = TrainingFlags(steps=9, batch_size=4, warmup_steps=None)
    models = {"a": toy_model(), "b": toy_model().eval()}
    seconds, environment = measure_updates(models, ToyData(), toy_loss, flags, rounds=2)
    assert seconds.keys() == models.keys() and min(seconds.values()) > 0
    assert environment["torch"] == torch.__version__
