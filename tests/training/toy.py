"""A run that is small enough for a hundred tests."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from linattn_models.training import RunFolder, TrainingConfig, train
from linattn_models.training.checkpoint import read_checkpoint, write_checkpoint

DESCRIBE = {"app": "toy", "preset": "smoke", "dataset": "noise", "attention": "linear"}


class ToyData:
    """Regression on random features."""

    def __init__(self, examples: int = 23, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(5)
        self.inputs = torch.randn(examples, 4, generator=generator, dtype=dtype)
        self.targets = self.inputs.sum(-1, keepdim=True).sin()

    def __len__(self) -> int:
        return len(self.inputs)

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        return {"inputs": self.inputs[indices], "targets": self.targets[indices]}


class Crash(Exception):
    """Simulates a sudden end of the process."""


class CrashingData(ToyData):
    """Crashes at batch number `crash_at`, counted from 0 within the process."""

    def __init__(self, crash_at: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(dtype=dtype)
        self.left = crash_at

    def batch(self, indices: Tensor) -> dict[str, Tensor]:
        if self.left == 0:
            self.crash()
        self.left -= 1
        return super().batch(indices)

    def crash(self) -> None:
        raise Crash


def toy_model(dropout: float = 0.25, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(3)
    layers = nn.Linear(4, 8), nn.GELU(), nn.Dropout(dropout), nn.LayerNorm(8), nn.Linear(8, 1)
    return nn.Sequential(*layers).to(dtype)


def toy_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return nn.functional.mse_loss(model(batch["inputs"]), batch["targets"])


def weighted_loss(model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """A mean over numbers of which examples have more or fewer, as a sum and their number."""
    counted = batch["inputs"] > 0
    errors = (model(batch["inputs"]) - batch["targets"]).square().mean(1, keepdim=True)
    return (errors * counted).sum(), counted.sum()


def noisy_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Draws from every global generator there is."""
    noise = random.gauss(1.0, 0.1) + np.random.normal(0.0, 0.1) + 0.1 * torch.randn(()).item()
    return toy_loss(model, batch) * noise


def toy_evaluate(model: nn.Module) -> dict[str, float]:
    """Draws too, and must not be noticed."""
    assert not model.training and not torch.is_grad_enabled()
    random.random(), np.random.rand(), torch.rand(3)
    data = ToyData()
    return {
        "error": float(
            nn.functional.l1_loss(model(data.inputs.to(model[0].weight.device)).cpu(), data.targets)
        )
    }


def toy_config(**changes: Any) -> TrainingConfig:
    settings: dict[str, Any] = {"steps": 12, "batch_size": 4, "learning_rate": 0.02, "log_every": 1}
    return TrainingConfig(**{**settings, **changes})


def toy_run(
    out: Path,
    *,
    model: nn.Module | None = None,
    data: Any = None,
    loss: Any = noisy_loss,
    evaluate: Any = toy_evaluate,
    resume: bool = False,
    describe: dict[str, object] = DESCRIBE,
    model_config: dict[str, object] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """The summary of a run in `out`; `changes` go to the training configuration."""
    return train(
        toy_model() if model is None else model,
        ToyData() if data is None else data,
        loss=loss,
        evaluate=evaluate,
        monitor="error",
        config=toy_config(**changes),
        out=out,
        resume=resume,
        describe=describe,
        model_config={"width": 8} if model_config is None else model_config,
    )


def change_state(folder: Path, **changes: Any) -> None:
    """Writes a checkpoint anew with other values in its state."""
    weights, state = read_checkpoint(folder)
    shutil.rmtree(folder)
    write_checkpoint(folder, weights, {**state, **changes})


def logged(out: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl without their times, which no two runs share."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name != "seconds"} for line in lines]


def same_weights(first: Path, second: Path) -> bool:
    """Whether the last checkpoints of two runs hold the same bits, besides their progress."""
    return _last_state(first) == _last_state(second)


def _last_state(out: Path) -> tuple[bytes, bytes]:
    folder = RunFolder(out).latest_checkpoint()
    state = read_checkpoint(folder).state
    others = io.BytesIO()
    torch.save({name: state[name] for name in ("optimizer", "random", "scaler")}, others)
    return (folder / "model.safetensors").read_bytes(), others.getvalue()
