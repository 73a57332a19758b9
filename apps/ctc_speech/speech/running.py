"""Normalization as frames arrive: running means and variances, which begin at those of a corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linattn_core.errors import expected
from speech.features import BINS, SMALLEST_DEVIATION, Frames, measure

PRIOR_FRAMES = 100.0  # a second: so much the corpus counts beside the frames of a stream
LONGEST_MEMORY = 3_000.0  # frames, 30 seconds; older ones fade


@dataclass(frozen=True)
class Prior:
    """Each bin's mean and variance over a corpus, as a run's config.json has them.

    Attributes:
        mean, variance: 40 numbers each.
        frames: for how many frames of a stream they count.
    """

    mean: tuple[float, ...]
    variance: tuple[float, ...]
    frames: float = PRIOR_FRAMES

    @classmethod
    def of(cls, utterances: Sequence[Frames]) -> Prior:
        """That of all frames of the utterances."""
        mean, variance = measure(utterances)
        return cls(tuple(map(float, mean)), tuple(map(float, variance)))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Prior:
        """The prior that a run's configuration has."""
        mean, variance = (tuple(map(float, values[name])) for name in ("mean", "variance"))
        if not len(mean) == len(variance) == BINS:
            raise ValueError(expected("prior", f"{BINS} means and variances", len(mean)))
        return cls(mean, variance, float(values["frames"]))


class RunningNorm:
    """Subtracts the mean of the frames so far, and divides by their deviation.

    Pieces of a stream give what one call gives. A frame counts among those so far, so that a loud
    onset is not far out of range.

        w_t = min(w_(t-1) + 1, LONGEST_MEMORY)      m_t = m_(t-1) + (x_t - m_(t-1)) / w_t

    for m the mean and the mean square; w_0 is `prior.frames`.

    Args:
        prior: where mean and variance begin.
    """

    def __init__(self, prior: Prior) -> None:
        mean = np.array(prior.mean)
        self._moments = np.stack([mean, np.array(prior.variance) + mean**2])  # (2, BINS)
        self._weight = prior.frames

    def __call__(self, frames: Frames) -> Frames:
        """The frames (n, BINS) that follow those so far, normalized, float32."""
        x = frames.astype(np.float64)
        moments = self._advance(np.stack([x, x**2], 1))
        mean, square = moments[:, 0], moments[:, 1]
        deviation = np.sqrt(np.maximum(square - mean**2, SMALLEST_DEVIATION**2))
        normalized: Frames = ((x - mean) / deviation).astype(np.float32)
        return normalized

    def _advance(self, values: np.ndarray) -> np.ndarray:
        """The moments (n, 2, BINS) at each frame, from its values of this shape."""
        growing = int(np.clip(LONGEST_MEMORY - self._weight, 0, len(values)))
        weights = self._weight + np.arange(1, growing + 1)[:, None, None]
        total = self._weight * self._moments + values[:growing].cumsum(0)
        moments = [*(total / weights)]
        for value in values[growing:]:
            last = moments[-1] if moments else self._moments
            moments.append(last + (value - last) / LONGEST_MEMORY)
        if moments:
            self._moments, self._weight = moments[-1].copy(), self._weight + growing
        return np.array(moments).reshape(values.shape)
