"""A run that is stopped at any moment and resumed equals one that was not stopped."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linattn_models.training import RunFolder
from tests.training.toy import (
    Crash,
    CrashingData,
    ToyData,
    change_state,
    logged,
    same_weights,
    toy_evaluate,
    toy_model,
    toy_run,
)


@settings(max_examples=12)
@given(
    steps=st.integers(2, 9),
    crash_at=st.integers(0, 8),
    log_every=st.integers(1, 4),
    eval_every=st.none() | st.integers(1, 4),
    checkpoint_every=st.none() | st.integers(1, 4),
    keep_checkpoints=st.integers(1, 3),
    optimizer=st.sampled_from(["radam", "adam", "adamw"]),
    mixed_precision=st.sampled_from(["no", "bf16"]),
)
def test_a_crash_at_any_step_changes_nothing(steps: int, crash_at: int, **settings: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder, "whole"), Path(folder, "broken")
        model, resumed = toy_model(), toy_model()
        summary = toy_run(whole, model=model, steps=steps, **settings)
        with pytest.raises(Crash):
            toy_run(broken, data=CrashingData(crash_at % steps), steps=steps, **settings)
        again = toy_run(broken, model=resumed, resume=True, steps=steps, **settings)
        assert logged(broken) == logged(whole)
        assert same_weights(whole, broken)
        assert all(map(torch.equal, model.state_dict().values(), resumed.state_dict().values()))
        assert again["metrics"] == summary["metrics"]


def test_an_ended_run_is_extended_as_if_it_had_never_ended(out: Path, unbroken: Path) -> None:
    for steps in (5, 7, 12):
        toy_run(out, steps=steps, checkpoint_every=4, eval_every=3, resume=out.exists())
    assert logged(out) == logged(unbroken)
    assert same_weights(out, unbroken)


def test_a_run_that_is_being_extended_has_not_ended(out: Path) -> None:
    toy_run(out, steps=2)
    with pytest.raises(Crash):
        toy_run(out, steps=6, data=CrashingData(1), resume=True)
    assert not RunFolder(out).summary_file.exists()


def test_weights_that_are_tied_stay_tied(out: Path) -> None:
    def tied() -> torch.nn.Module:
        torch.manual_seed(0)
        model = torch.nn.Sequential(*(torch.nn.Linear(4, size) for size in (4, 4, 1)))
        model[1].weight = model[0].weight
        return model

    first, second = tied(), tied()
    toy_run(out, steps=4, model=first, evaluate=None)
    toy_run(out, steps=4, model=second, resume=True, evaluate=None)
    assert second[0].weight is second[1].weight
    assert torch.equal(first[0].weight, second[0].weight)


def test_resuming_a_complete_run_makes_no_step(out: Path) -> None:
    summary = toy_run(out, steps=3)
    before = (out / "metrics.jsonl").read_bytes()
    model = toy_model()
    assert toy_run(out, steps=3, model=model, data=CrashingData(0), resume=True) == summary
    assert (out / "metrics.jsonl").read_bytes() == before
    weights = toy_model()
    RunFolder(out).load_model(lambda _: weights)
    assert all(map(torch.equal, model.state_dict().values(), weights.state_dict().values()))


def test_a_run_killed_before_its_summary_gets_one(out: Path) -> None:
    summary = toy_run(out, steps=3)
    (out / "summary.json").unlink()
    again = toy_run(out, steps=3, data=CrashingData(0), resume=True)
    assert again["metrics"] == summary["metrics"]
    assert json.loads((out / "summary.json").read_text()) == again


def test_a_half_written_line_is_dropped(out: Path, unbroken: Path) -> None:
    toy_run(out, steps=8, checkpoint_every=4, eval_every=3)
    with (out / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 9, "split": "train", "lo')
    toy_run(out, checkpoint_every=4, eval_every=3, resume=True)
    assert logged(out) == logged(unbroken)


@pytest.mark.parametrize("damage", [lambda text: "", lambda text: "?" + text[1:]])
def test_a_resume_with_lines_that_are_missing_or_damaged_changes_nothing(
    out: Path, damage: Callable[[str], str]
) -> None:
    toy_run(out, steps=4)
    file = out / "metrics.jsonl"
    file.write_text(damage(file.read_text()))
    before = {name: (out / name).read_bytes() for name in ("config.json", "summary.json")}
    with pytest.raises(ValueError, match=r"metrics\.jsonl"):
        toy_run(out, steps=6, resume=True)
    assert {name: (out / name).read_bytes() for name in before} == before


def test_evaluating_does_not_disturb_training(out: Path, tmp_path: Path) -> None:
    toy_run(out, steps=6, eval_every=1)
    toy_run(tmp_path / "blind", steps=6, evaluate=None)
    trained = [line for line in logged(out) if line["split"] == "train"]
    assert trained == logged(tmp_path / "blind")
    assert same_weights(out, tmp_path / "blind")


def test_training_time_adds_up_over_resumes(out: Path) -> None:
    first = toy_run(out, steps=3)["train_seconds"]
    assert toy_run(out, steps=6, resume=True)["train_seconds"] >= first > 0
    times = [line["seconds"] for line in RunFolder(out).metrics()]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"learning_rate": 0.5}, "training.learning_rate was 0.02 and is now 0.5"),
        ({"seed": 7}, "training.seed was 0 and is now 7"),
        ({"clip_norm": 1.0}, "training.clip_norm was null and is now 1.0"),
        ({"model_config": {"width": 9}}, "model.width was 8 and is now 9"),
        ({"data": ToyData(24)}, "examples was 23 and is now 24"),
        (
            {"describe": {"app": "toy", "preset": "p", "dataset": "d", "attention": "softmax"}},
            'attention was "linear" and is now "softmax"',
        ),
        ({"model_config": {"width": 8, "depth": 2}}, "model.depth was absent and is now 2"),
        ({"model_config": {}}, "model.width was 8 and is now absent"),
    ],
)
def test_another_configuration_is_refused(
    out: Path, changes: dict[str, object], named: str
) -> None:
    toy_run(out, steps=2)
    before = (out / "config.json").read_bytes()
    with pytest.raises(ValueError, match="cannot be resumed") as refusal:
        toy_run(out, **{"steps": 2, "resume": True, **changes})
    assert named in str(refusal.value)
    assert (out / "config.json").read_bytes() == before


def test_what_alters_no_update_may_change(out: Path, unbroken: Path) -> None:
    toy_run(out, steps=4, log_every=1, checkpoint_every=1, keep_checkpoints=3)
    toy_run(out, resume=True, log_every=1, checkpoint_every=6, keep_checkpoints=1)
    assert same_weights(out, unbroken)
    assert [folder.name for folder in RunFolder(out).checkpoints()] == ["step-12"]
    assert RunFolder(out).config()["training"]["steps"] == 12


def test_fewer_steps_than_made_are_refused(out: Path) -> None:
    toy_run(out, steps=5)
    with pytest.raises(ValueError, match="steps"):
        toy_run(out, steps=3, resume=True)


@pytest.mark.parametrize("schedule", ["cosine", "trapezoid"])
def test_a_lengthened_schedule_that_ends_warns(out: Path, schedule: str) -> None:
    toy_run(out, steps=4, schedule=schedule)
    with pytest.warns(UserWarning, match=schedule):
        toy_run(out, steps=6, schedule=schedule, resume=True)


def test_a_warm_up_that_nobody_gave_is_kept_by_a_resume(out: Path) -> None:
    toy_run(out, steps=20, warmup_steps=None)
    assert RunFolder(out).config()["training"]["warmup_steps"] == 2
    with pytest.warns(UserWarning, match="warm-up"):  # of 40 steps it would be longer
        assert toy_run(out, steps=40, warmup_steps=None, resume=True)["steps"] == 40
    assert RunFolder(out).config()["training"]["warmup_steps"] == 2
    with pytest.raises(ValueError, match=r"training\.warmup_steps"):
        toy_run(out, steps=40, warmup_steps=4, resume=True)


@pytest.mark.parametrize(
    ("changes", "named"), [({"random": [{}, {}]}, "2 process"), ({"threads": 7}, "7 threads")]
)
def test_a_checkpoint_of_other_processes_or_threads_warns(
    out: Path, changes: dict[str, Any], named: str
) -> None:
    toy_run(out, steps=2)
    change_state(out / "checkpoints" / "step-2", **changes)
    with pytest.warns(UserWarning, match=named):
        toy_run(out, steps=4, resume=True)


def test_a_folder_that_is_moved_while_it_trains_is_named_and_may_come_back(
    out: Path, unbroken: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = out.with_name("elsewhere")

    def move(model: torch.nn.Module) -> dict[str, float]:
        if out.exists() and len(RunFolder(out).metrics()) > 6:
            out.rename(elsewhere)
        return toy_evaluate(model)

    with pytest.raises(FileNotFoundError, match="run: expected the run that began there"):
        toy_run(out, evaluate=move, checkpoint_every=4, eval_every=3)
    assert not out.exists() and "Traceback" not in capsys.readouterr().err
    elsewhere.rename(out)
    toy_run(out, resume=True, checkpoint_every=4, eval_every=3)
    assert logged(out) == logged(unbroken)
    assert same_weights(out, unbroken)


def test_a_checkpoint_of_another_run_is_refused(out: Path, tmp_path: Path) -> None:
    toy_run(out, steps=2)
    toy_run(tmp_path / "other", steps=9, seed=1)
    stray = tmp_path / "other" / "checkpoints" / "step-9"
    stray.rename(out / "checkpoints" / "step-9")
    with pytest.raises(ValueError, match="step-9"):
        toy_run(out, resume=True)
