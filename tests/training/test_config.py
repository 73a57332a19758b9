"""A training configuration that cannot be carried out is refused in one sentence."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from linattn_models.training import TrainingConfig, TrainingFlags


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("steps", {"steps": 0}),
        ("batch_size", {"batch_size": -4}),
        ("eval_every", {"eval_every": 0}),
        ("seed", {"seed": -1}),
        ("learning_rate", {"learning_rate": 0}),
        ("activation_checkpointing", {"activation_checkpointing": "no"}),
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
    with pytest.raises(ValueError, match=rf"^{named}(\.1)?: expected"):
        TrainingConfig(**values)
    with pytest.raises(ValueError, match=rf"^--{named.replace('_', '-')}(\.1)?: expected"):
        TrainingFlags(**values).config()


def test_it_is_frozen_and_plain_json() -> None:
    integers = {"steps": np.int64(10), "batch_size": torch.tensor(2), "drop_at": np.uint8(4)}
    config = TrainingConfig(**integers, schedule="step", clip_norm=1)
    assert (config.steps, config.batch_size, config.drop_at) == (10, 2, 4)
    written = json.dumps(config.to_dict())
    assert TrainingConfig(**json.loads(written)) == config
    assert '"clip_norm": 1,' in written  # as an int, so that a run of an earlier version resumes
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 5
