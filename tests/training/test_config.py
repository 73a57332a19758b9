"""A training configuration that cannot be carried out is refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from linattn_models.training import TrainingConfig


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps: expected an integer of at least 1, got 0"),
        ({"steps": 2.0}, "steps: expected an integer of at least 1, got 2.0"),
        ({"steps": True}, "steps: expected an integer of at least 1, got True"),
        ({"batch_size": -4}, "batch_size: expected an integer of at least 1, got -4"),
        ({"eval_every": 0}, "eval_every: expected an integer of at least 1 or None, got 0"),
        ({"seed": -1}, "seed: expected an integer of at least 0, got -1"),
        ({"learning_rate": 0}, "learning_rate: expected a finite number above 0, got 0"),
        (
            {"learning_rate": float("nan")},
            "expected a finite number above 0, got nan",
        ),
        ({"clip_norm": 0.0}, "clip_norm: expected a finite number above 0 or None, got 0.0"),
        ({"betas": (0.9, 1.0)}, "betas: expected two numbers from 0 to below 1, got (0.9, 1.0)"),
        ({"betas": 0.9}, "betas: expected two numbers from 0 to below 1, got 0.9"),
        ({"weight_decay": -0.1}, "weight_decay: expected a finite number of at least 0, got -0.1"),
        (
            {"optimizer": "radm"},
            "optimizer: expected a known name, got 'radm'; did you mean 'radam'",
        ),
        (
            {"mixed_precision": "float16"},
            "got 'float16'; known are 'no', 'bf16', 'fp16'",
        ),
        ({"schedule": "step"}, "drop_at: expected a number with the schedule 'step'"),
        ({"schedule": "plateau", "eval_every": 2}, "patience: expected a number with the schedule"),
        ({"patience": 1}, "None with any other, got 1 with 'constant'"),
        ({"schedule": "plateau", "patience": 0, "eval_every": 2}, "patience: expected an integer"),
        (
            {"schedule": "plateau", "patience": 1},
            "eval_every: expected a number with the schedule 'plateau', got None",
        ),
        ({"drop_at": 5}, "None with any other, got 5 with 'constant'"),
        (
            {"schedule": "cosine", "warmup_steps": 10},
            "warmup_steps: expected fewer than steps=10 with the schedule 'cosine', got 10",
        ),
    ],
)
def test_values_out_of_range_are_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011 - the sentence is compared below
        TrainingConfig(**{"steps": 10, "batch_size": 2, **changes})
    assert sentence in str(refusal.value)


@pytest.mark.parametrize("integer", [np.int64, np.uint8, torch.tensor], ids=lambda x: x.__name__)
def test_integers_of_numpy_and_torch_become_plain_ones(integer: Callable[[int], Any]) -> None:
    counts = {"steps": 10, "batch_size": 2, "log_every": 3, "keep_checkpoints": 1}
    counts |= {"eval_every": 4, "checkpoint_every": 5, "warmup_steps": 6, "seed": 7}
    schedules: list[dict[str, Any]] = [
        {"schedule": "step", "drop_at": 8},
        {"schedule": "plateau", "patience": 9},
    ]
    for schedule in schedules:
        plain = TrainingConfig(**counts, **schedule)
        values = vars(plain).items()
        config = TrainingConfig(**{k: integer(v) if type(v) is int else v for k, v in values})
        assert json.dumps(config.to_dict()) == json.dumps(plain.to_dict())


@pytest.mark.parametrize("value", [np.float64(5), np.bool_(True), torch.tensor(True), "5"])
def test_other_values_of_numpy_and_torch_are_no_integers(value: object) -> None:
    with pytest.raises(ValueError, match="steps: expected an integer of at least 1, got"):
        TrainingConfig(steps=value, batch_size=2)


def test_it_is_frozen_and_plain_json() -> None:
    config = TrainingConfig(steps=10, batch_size=2, schedule="step", drop_at=4, clip_norm=1)
    assert TrainingConfig(**json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 5
