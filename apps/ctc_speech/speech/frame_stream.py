"""Samples in, as they arrive; frames out."""

from __future__ import annotations

import kaldi_native_fbank
import numpy as np
import soxr

from linattn_core.errors import expected
from speech.audio import LOUDEST, LOWEST_RATE, RATE, Samples
from speech.features import BINS, FULL_SCALE, Frames, fbank_options


class FrameStream:
    """The frames that `filterbank` makes of the whole, in pieces; other rates are resampled."""

    def __init__(self) -> None:
        self._bank = kaldi_native_fbank.OnlineFbank(fbank_options())
        self._rate: int | None = None
        self._resampler: soxr.ResampleStream | None = None
        self._count = 0  # frames so far

    def accept(self, rate: int, samples: np.ndarray) -> Frames:
        """The frames (n, 40) that end within these samples (any number,), in -1..1.

        Raises:
            ValueError: another rate than before or below 1,000, several channels, or samples that
                are NaN or far too large.
        """
        samples = self._check(rate, samples)
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples)
        return self._frames(samples)

    def finish(self) -> Frames:
        """The frames that resampling held back."""
        if self._resampler is None:
            return self._frames(np.zeros(0, np.float32))
        return self._frames(self._resampler.resample_chunk(np.zeros(0, np.float32), last=True))

    def _check(self, rate: int, samples: np.ndarray) -> Samples:
        samples = np.asarray(samples, np.float32)
        if samples.ndim != 1:
            raise ValueError(expected("samples", "one channel, (n,)", f"shape {samples.shape}"))
        if others := samples.size - int((np.abs(samples) <= LOUDEST).sum()):
            wanted = f"numbers of at most {LOUDEST:,.0f}"
            raise ValueError(expected("samples", wanted, f"{others} that are NaN or larger"))
        if self._rate is None:
            if not rate >= LOWEST_RATE:
                raise ValueError(expected("rate", f"at least {LOWEST_RATE} a second", rate))
            self._rate = rate
            if rate != RATE:
                self._resampler = soxr.ResampleStream(rate, RATE, 1, dtype="float32")
        if rate != self._rate:
            advice = "make a stream for each rate"
            raise ValueError(expected("rate", f"{self._rate}, as before", rate, advice))
        return samples

    def _frames(self, samples: Samples) -> Frames:
        if len(samples):
            self._bank.accept_waveform(RATE, samples * np.float32(FULL_SCALE))
        ready = self._bank.num_frames_ready
        frames = [self._bank.get_frame(index) for index in range(self._count, ready)]
        self._bank.pop(ready - self._count)  # they are not kept twice
        self._count = ready
        return np.array(frames, dtype=np.float32).reshape(-1, BINS)
