"""Where a curve of training goes: a power law of the updates, fitted to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PAPER_UPDATES = 1_375_000  # of MNIST's models: 250 epochs of 55,000 images, 10 in an update
POWERS = np.linspace(0.02, 2.0, 100)
DECAY = 0.8  # of a training: then the schedule "trapezoid" lets the rate fall, and the loss with it
WARM = 0.1  # of a training: before, the loss falls faster than by any one law


class PowerLaw(NamedTuple):
    """The function floor + scale * updates ** -power."""

    floor: float
    scale: float
    power: float

    def __call__(self, updates: float) -> float:
        """Its value after so many updates."""
        return float(self.floor + self.scale * updates**-self.power)


def fit_power_law(curve: Sequence[tuple[float, float]]) -> PowerLaw:
    """The law of the smallest squared error, with a floor of at least 0.

    Args:
        curve: (updates, value) of three points or more, all above zero.
    """
    x, y = np.array(curve, dtype=float).T
    laws = [_fit(x, y, power) for power in POWERS]
    return min(
        laws, key=lambda law: float(((law.floor + law.scale * x**-law.power - y) ** 2).sum())
    )


def _fit(x: np.ndarray, y: np.ndarray, power: float) -> PowerLaw:
    terms = np.stack([np.ones_like(x), x**-power], axis=1)
    (floor, scale), *_ = np.linalg.lstsq(terms, y, rcond=None)
    if floor < 0:  # a loss in bits has none below zero
        falling = terms[:, 1]
        floor, scale = 0.0, falling @ y / (falling @ falling)
    return PowerLaw(float(floor), float(scale), float(power))


def fit_before_decay(curve: Sequence[tuple[float, float]]) -> PowerLaw:
    """The law of a training with the schedule "trapezoid", while its rate is constant."""
    last = max(x for x, _ in curve)
    return fit_power_law([(x, y) for x, y in curve if WARM * last <= x <= DECAY * last])
