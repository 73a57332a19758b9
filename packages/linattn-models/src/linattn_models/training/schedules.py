"""Learning rates as functions of the step alone, so that resuming has nothing to restore."""

from __future__ import annotations

import math

from linattn_models.training.config import TrainingConfig


def learning_rate(config: TrainingConfig, step: int) -> float:
    """The learning rate of the update made when `step` updates have been made before it.

        rate(step) = learning_rate * min(1, (step + 1) / warmup_steps) * decay(step)

    Args:
        config: gives `learning_rate`, `schedule` and what the schedule needs.
        step: updates made so far; 0 for the first update.

    Returns:
        The rate, above 0 for every step below `config.steps`.
    """
    warmup = min(1.0, (step + 1) / config.warmup_steps) if config.warmup_steps else 1.0
    return config.learning_rate * warmup * _decay(config, step)


def _decay(config: TrainingConfig, step: int) -> float:
    if config.schedule == "cosine":
        span = config.steps - config.warmup_steps
        position = min(max(step - config.warmup_steps, 0), span)
        return 0.5 * (1.0 + math.cos(math.pi * position / span))
    if config.drop_at is not None and step >= config.drop_at:
        return config.drop_factor
    return 1.0
