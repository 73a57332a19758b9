"""Samples in, as they arrive; frames out."""

from __future__ import annotations

from numbers import Real

import numpy as np
import soxr

from linattn_core.errors import expected
from speech.audio import LOWEST_RATE, RATE, Samples, require_range
from speech.features import Filterbank, Frames

HIGHEST_RATE = 1_000_000  # samples a second; soxr does not return from infinite ones


class FrameStream:
    """The frames that `filterbank` makes of the whole, in pieces; other rates are resampled."""

    def __init__(self) -> None:
        self._bank = Filterbank()
        self._rate: int | None = None
        self._resampler: soxr.ResampleStream | None = None

    def accept(self, rate: int, samples: np.ndarray) -> None:
        """Takes more samples.

        Args:
            samples: (n,), floating point in -1..1, or int16 or int32 in its whole range.

        Raises:
            ValueError: another rate than before or no number from 1,000 to 1,000,000, several
                channels, or samples that are NaN, far outside of -1..1 or of another dtype.
        """
        samples = self._check(rate, samples)
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        self._bank.accept(samples)

    def finish(self) -> None:
        """Takes what resampling held back."""
        if self._resampler is not None:
            self._bank.accept(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))

    @property
    def num_frames(self) -> int:
        """Frames that `take` returns."""
        return self._bank.num_frames

    def take(self) -> Frames:
        """The frames (n, 40) of the windows that have become whole."""
        return self._bank.take()

    def _check(self, rate: int, samples: np.ndarray) -> Samples:
        samples = _as_float(np.asarray(samples))
        if samples.ndim != 1:
            raise ValueError(expected("samples", "one channel, (n,)", f"shape {samples.shape}"))
        require_range(samples, "samples")
        if not isinstance(rate, Real) or not LOWEST_RATE <= rate <= HIGHEST_RATE:
            wanted = f"a number from {LOWEST_RATE:,} to {HIGHEST_RATE:,} a second"
            raise ValueError(expected("rate", wanted, repr(rate)))
        if self._rate is None:
            self._rate = rate
            if rate != RATE:
                self._resampler = soxr.ResampleStream(rate, RATE, 1, dtype="float32")
        if rate != self._rate:
            advice = "make a stream for each rate"
            raise ValueError(expected("rate", f"{self._rate}, as before", rate, advice))
        return samples


def _as_float(samples: np.ndarray) -> Samples:
    """Integers as soundfile converts them: the most negative one is -1."""
    if samples.dtype in (np.int16, np.int32):
        return (samples / -float(np.iinfo(samples.dtype).min)).astype(np.float32)
    if samples.dtype.kind != "f":
        wanted = "floating point in -1..1, int16 or int32"
        raise ValueError(expected("samples", wanted, samples.dtype, "convert them"))
    return samples.astype(np.float32)
