"""SpecAugment: random bands of time and of frequency are set to the mean, which is 0."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpecAugment:
    """The masks of an utterance (Park et al. 2019), without time warping."""

    time_masks: int = 2
    """Bands of time; 0 for none."""
    time_width: int = 40
    """The most frames of such a band."""
    time_share: float = 0.2
    """The largest share of an utterance that such a band covers."""
    bin_masks: int = 2
    """Bands of frequency; 0 for none."""
    bin_width: int = 8
    """The most bins of such a band."""

    def masked(self, frames: Tensor) -> Tensor:
        """A copy of the frames (T, F) with bands of 0, drawn from torch's generator."""
        frames = frames.clone()
        length, bins = frames.shape
        widest = min(self.time_width, int(length * self.time_share))
        for _ in range(self.time_masks):
            start, stop = _band(length, widest)
            frames[start:stop] = 0.0
        for _ in range(self.bin_masks):
            start, stop = _band(bins, self.bin_width)
            frames[:, start:stop] = 0.0
        return frames


def _band(size: int, widest: int) -> tuple[int, int]:
    width = int(torch.randint(widest + 1, ()))
    start = int(torch.randint(size - width + 1, ()))
    return start, start + width
