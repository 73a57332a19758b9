"""The files of a run, and the runs that are refused."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from linattn_models.training import RunFolder
from linattn_models.training.schedule import learning_rate
from tests.training.toy import (
    DESCRIBE,
    ToyData,
    logged,
    toy_config,
    toy_loss,
    toy_model,
    toy_run,
)


def test_the_summary_is_the_contract(out: Path) -> None:
    model = toy_model()
    summary = toy_run(out, steps=5, seed=3, model=model)
    assert json.loads((out / "summary.json").read_text()) == summary
    assert list(summary) == [
        *("app", "preset", "dataset", "attention", "seed", "parameters", "steps"),
        *("train_seconds", "metrics", "environment"),
    ]
    assert {name: summary[name] for name in DESCRIBE} == DESCRIBE
    assert (summary["seed"], summary["steps"]) == (3, 5)
    assert summary["parameters"] == sum(p.numel() for p in model.parameters())
    environment = summary["environment"]
    names = {"date", "torch", "device", "threads", "backends", "commit", "python", "platform"}
    assert environment.keys() == names
    assert environment["torch"] == torch.__version__


def test_without_evaluation_the_last_loss_is_the_metric(out: Path) -> None:
    summary = toy_run(out, steps=5, evaluate=None)
    assert summary["metrics"] == {"train_loss": logged(out)[-1]["loss"]}


def test_lines_of_metrics(out: Path) -> None:
    changes = {"steps": 7, "log_every": 3, "eval_every": 2, "schedule": "cosine"}
    toy_run(out, **changes)
    lines = RunFolder(out).metrics()
    steps = [(line["step"], line["split"]) for line in lines]
    assert steps == [
        *((1, "train"), (2, "eval"), (3, "train"), (4, "eval"), (6, "train"), (6, "eval")),
        *((7, "train"), (7, "eval")),
    ]
    config = toy_config(**changes)
    for line in lines:
        if line["split"] == "train":
            assert line["learning_rate"] == learning_rate(config, line["step"] - 1)
        assert line["seconds"] > 0


def test_a_line_is_the_mean_since_the_line_before(out: Path, tmp_path: Path) -> None:
    """More steps than are read from the device at once."""
    toy_run(out, steps=150, log_every=70, evaluate=None)
    toy_run(tmp_path / "each", steps=150, log_every=1, evaluate=None)
    losses = [line["loss"] for line in logged(tmp_path / "each")]
    parts = (losses[:1], losses[1:70], losses[70:140], losses[140:])
    means = [math.fsum(part) / len(part) for part in parts]
    assert [line["loss"] for line in logged(out)] == means


def test_runs_repeat_and_seeds_differ(out: Path, tmp_path: Path) -> None:
    toy_run(out, steps=4)
    torch.rand(7)  # where the global generator stands beforehand does not matter
    toy_run(tmp_path / "again", steps=4)
    toy_run(tmp_path / "other", steps=4, seed=1)
    assert logged(out) == logged(tmp_path / "again")
    assert logged(out)[0]["loss"] != logged(tmp_path / "other")[0]["loss"]


def test_precisions_may_follow_each_other_in_one_process(out: Path, tmp_path: Path) -> None:
    # Without random numbers, which differ by dtype on a GPU.
    for folder, precision in ((out, "bf16"), (tmp_path / "full", "no")):
        model = toy_model(dropout=0.0)
        toy_run(folder, steps=3, model=model, loss=toy_loss, mixed_precision=precision)
    half, full = (line[0]["loss"] for line in (logged(out), logged(tmp_path / "full")))
    assert half != full
    assert half == pytest.approx(full, rel=0.05)


def test_clipping_bounds_the_update(out: Path) -> None:
    model, before = toy_model(), toy_model()
    toy_run(out, steps=1, model=model, optimizer="adamw", clip_norm=1e-12, evaluate=None)
    moved = [
        (new.cpu() - old).norm().item()
        for new, old in zip(model.parameters(), before.parameters(), strict=True)
    ]
    assert max(moved) < 1e-4  # Adam's own eps outweighs so small a gradient


def test_modes_are_left_as_they_were(out: Path) -> None:
    model = toy_model().eval()
    model[2].train()
    toy_run(out, steps=2, model=model)
    assert [module.training for module in model] == [False, False, True, False, False]


def test_tensorboard_shows_each_step_once_even_after_a_resume(out: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        toy_run(out, steps=6, checkpoint_every=2, data=_Failing())
    # TensorBoard reads files by the second in their names; the rest of a name has no order.
    (file,) = (out / "tensorboard").iterdir()
    file.rename(file.with_name(re.sub(r"(?<=tfevents\.)\d+", "0" * 10, file.name)))
    toy_run(out, steps=6, checkpoint_every=2, resume=True)
    events = EventAccumulator(str(out / "tensorboard")).Reload()
    points = {event.step: event.value for event in events.Scalars("train/loss")}
    assert len(points) == len(events.Scalars("train/loss"))
    losses = {line["step"]: line["loss"] for line in logged(out) if line["split"] == "train"}
    assert points == pytest.approx(losses)


class _Failing(ToyData):
    """Fails at the sixth batch: after the checkpoint of step 4 and the loss of step 5."""

    calls = 0

    def batch(self, indices: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls += 1
        1 / (6 - self.calls)
        return super().batch(indices)


def test_progress_is_a_line_for_each_loss_where_stderr_is_no_terminal(
    out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    toy_run(out, steps=1200, log_every=500, evaluate=None, batch_size=1)
    errors = capsys.readouterr().err
    assert [line.partition(":")[0] for line in errors.splitlines()] == [
        *("step 1 of 1,200", "step 500 of 1,200", "step 1,000 of 1,200", "step 1,200 of 1,200")
    ]
    assert "\r" not in errors


def test_a_folder_that_holds_a_run_is_not_overwritten(out: Path) -> None:
    toy_run(out, steps=2)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match="--resume"):
        toy_run(out, steps=2)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_nothing_to_resume_is_refused(out: Path) -> None:
    with pytest.raises(ValueError, match="resume"):
        toy_run(out, steps=2, resume=True)
    assert not out.exists()


def test_an_empty_folder_will_do(out: Path) -> None:
    out.mkdir()
    assert toy_run(out, steps=1)["steps"] == 1


def test_a_file_in_place_of_the_folder_is_refused(out: Path) -> None:
    out.write_text("")
    with pytest.raises(ValueError, match="folder"):
        toy_run(out)


def test_a_run_whose_configuration_is_lost_is_refused(out: Path) -> None:
    toy_run(out, steps=2)
    (out / "config.json").write_text('{"app": "to')
    with pytest.raises(ValueError, match=r"config\.json"):
        toy_run(out, resume=True)
    (out / "config.json").unlink()
    with pytest.raises(ValueError, match=r"config\.json"):
        toy_run(out, resume=True)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run(out: Path, bad: float) -> None:
    calls = iter(range(100))

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return toy_loss(model, batch) * (bad if next(calls) == 6 else 1.0)

    with pytest.raises(ValueError, match="loss at step 7"):
        toy_run(out, loss=loss, log_every=5, checkpoint_every=2, keep_checkpoints=1)
    assert [path.name for path in RunFolder(out).checkpoints()] == ["step-6"]
    model = toy_model()
    RunFolder(out).load_model(lambda _: model)
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_weights_that_are_not_finite_are_never_kept(out: Path) -> None:
    """The loss of the last step is fine, its gradient is not."""

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        return toy_loss(model, batch) + (model[0].weight * 0).abs().sqrt().sum()

    with pytest.raises(ValueError, match="weights at step 1"):
        toy_run(out, loss=loss, checkpoint_every=1)
    assert RunFolder(out).latest_checkpoint() is None


def test_a_metric_that_json_cannot_hold_is_null(out: Path) -> None:
    summary = toy_run(out, steps=2, evaluate=lambda model: {"error": math.inf})
    assert summary["metrics"] == {"error": None}
    assert "Infinity" not in (out / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"describe": {"app": "toy", "model": 1}}, "describe"),
        ({"describe": {"app": "toy", "seed": 1}}, "describe"),
        ({"data": ToyData(0)}, "data"),
        ({"model": nn.Identity()}, "model"),
        ({"model": toy_model().bfloat16()}, r"model: .* got '0\.weight' in torch\.bfloat16"),
        ({"model": toy_model().half()}, "model"),
        ({"evaluate": lambda model: {"step": 1.0}}, "metrics"),
        ({"loss": lambda model, batch: model(batch["inputs"]).squeeze(-1)}, "loss"),
    ],
)
def test_what_cannot_be_trained_is_refused(out: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        toy_run(out, steps=2, **changes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="refused only where there is no accelerator")
def test_fp16_without_an_accelerator_is_refused(out: Path) -> None:
    with pytest.raises(ValueError, match="mixed_precision"):
        toy_run(out, mixed_precision="fp16")
    assert not out.exists()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("mixed_precision", ["no", "bf16", "fp16"])
def test_a_resume_on_a_gpu_is_bit_for_bit(out: Path, tmp_path: Path, mixed_precision: str) -> None:
    toy_run(tmp_path / "whole", mixed_precision=mixed_precision)
    toy_run(out, steps=5, mixed_precision=mixed_precision)
    toy_run(out, mixed_precision=mixed_precision, resume=True)
    assert logged(out) == logged(tmp_path / "whole")


def test_a_state_that_no_checkpoint_holds_is_refused_before_the_first_update(out: Path) -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"count": 3}

    with pytest.raises(TypeError, match="_extra_state"):
        toy_run(out, steps=2, model=Counting(4, 1))
    assert not out.exists()
