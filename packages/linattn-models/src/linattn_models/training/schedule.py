"""The learning rate of each update."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from linattn_models.training.config import TrainingConfig

# Of each evaluation, the updates made before it and the error, None where it was not finite.
Errors = Sequence[tuple[int, float | None]]


def learning_rate(config: TrainingConfig, step: int, errors: Errors = ()) -> float:
    """The learning rate of the update made when `step` updates have been made before it.

        rate(step) = learning_rate * min(1, (step + 1) / warmup) * decay(step)

    It depends only on the step and, for the schedule plateau, on the errors measured until then, so
    that a resumed run has the same rates as one that was never stopped.

    Args:
        config: gives `learning_rate`, `schedule` and what the schedule needs.
        step: updates made so far; 0 for the first update.
        errors: for the schedule plateau, (updates made before it, error) of each evaluation.
    """
    rising = min(1.0, (step + 1) / config.warmup) if config.warmup else 1.0
    return config.learning_rate * rising * _decay(config, step, errors)


def _decay(config: TrainingConfig, step: int, errors: Errors) -> float:
    if config.schedule == "cosine":
        span = config.steps - config.warmup
        position = min(max(step - config.warmup, 0), span)
        return 0.5 * (1.0 + math.cos(math.pi * position / span))
    if config.schedule == "trapezoid":
        return min(1.0, max(0, config.steps - step) / config.cooldown)
    if config.patience is not None:
        measured = (error for after, error in errors if after <= step)
        return config.drop_factor ** _count_plateaus(measured, config.patience)
    if config.drop_at is not None and step >= config.drop_at:
        return config.drop_factor
    return 1.0


def _count_plateaus(errors: Iterable[float | None], patience: int) -> int:
    """How often `patience` errors in a row were no better than the best one before them."""
    best, waited, plateaus = math.inf, 0, 0
    for error in errors:
        if error is not None and error < best:
            best, waited = error, 0
            continue
        waited += 1
        if waited == patience:
            waited, plateaus = 0, plateaus + 1
    return plateaus
