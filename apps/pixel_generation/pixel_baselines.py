"""What images cost to a model that has learned nothing about how pixels depend on one another."""

from __future__ import annotations

import numpy as np
from pixel_datasets import Pixels

PSEUDO_COUNT = 0.5


def independent_pixels(train: Pixels, held_out: Pixels, levels: int) -> float:
    """Bits per dimension of `held_out` when each position has its own frequencies and no context.

    p_i(v) = (count of level v at position i + 1/2) / (n + levels / 2), counted on `train`.

    The half that is added (the estimator of Krichevsky and Trofimov) keeps a level that was never
    seen at a position from costing infinitely many bits. A model is worth what it saves below this.
    """
    seen = train.reshape(len(train), -1)
    asked = held_out.reshape(len(held_out), -1)
    positions = np.arange(seen.shape[1])
    counts = np.full((seen.shape[1], levels), PSEUDO_COUNT)
    for image in seen:
        counts[positions, image] += 1
    bits = -np.log2(counts / counts.sum(axis=1, keepdims=True))
    return float(np.mean([bits[positions, image].mean() for image in asked]))
