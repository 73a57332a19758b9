"""A training configuration that cannot be carried out is refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from linattn_models.training import TrainingConfig, TrainingFlags


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("steps", {"steps": 0}),
        ("steps", {"steps": 2.0}),
        ("batch_size", {"batch_size": -4}),
        ("eval_every", {"eval_every": 0}),
        ("seed", {"seed": -1}),
        ("learning_rate", {"learning_rate": 0}),
        ("learning_rate", {"learning_rate": float("nan")}),
        ("clip_norm", {"clip_norm": 0.0}),
        ("betas", {"betas": (0.9, 1.0)}),
        ("betas", {"betas": (0.9,)}),
        ("betas", {"betas": 0.9}),
        ("weight_decay", {"weight_decay": -0.1}),
        ("optimizer", {"optimizer": "radm"}),
        ("mixed_precision", {"mixed_precision": "float16"}),
        ("drop_at", {"schedule": "step"}),
        ("drop_at", {"drop_at": 5}),
        ("patience", {"schedule": "plateau", "eval_every": 2}),
        ("patience", {"schedule": "plateau", "patience": 0, "eval_every": 2}),
        ("patience", {"patience": 1}),
        ("eval_every", {"schedule": "plateau", "patience": 1}),
        ("warmup_steps", {"schedule": "cosine", "warmup_steps": 10}),
    ],
)
def test_values_out_of_range_are_refused(named: str, changes: dict[str, Any]) -> None:
    values = {"steps": 10, "batch_size": 2, **changes}
    with pytest.raises(ValueError, match=f"^{named}: expected"):
        TrainingConfig(**values)
    with pytest.raises(ValueError, match=f"^--{named.replace('_', '-')}: expected"):
        TrainingFlags(**values).config()


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
    with pytest.raises(ValueError, match="steps"):
        TrainingConfig(steps=value, batch_size=2)


def test_it_is_frozen_and_plain_json() -> None:
    config = TrainingConfig(steps=10, batch_size=2, schedule="step", drop_at=4, clip_norm=1)
    assert TrainingConfig(**json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 5


def test_help_says_what_each_field_is() -> None:
    for kind in (TrainingConfig, TrainingFlags):
        for field in dataclasses.fields(kind):
            assert f"\n        {field.name}: " in str(kind.__doc__)
