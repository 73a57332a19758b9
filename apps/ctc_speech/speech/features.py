"""Frames of sound: the logarithms of Kaldi's mel filterbank, with mean 0 and variance 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import kaldi_native_fbank
import numpy as np
import numpy.typing as npt

from speech.audio import RATE, Samples

Frames = npt.NDArray[np.float32]  # (frames, BINS)
Normalization = Literal["speaker", "utterance", "none"]

BINS = 40
WINDOW_MS = 25.0
STEP_MS = 10.0
STEP_SECONDS = STEP_MS / 1_000
FULL_SCALE = 32_768.0  # Kaldi takes samples as 16-bit integers
SMALLEST_DEVIATION = 1e-3  # of a bin that never changes, as in digital silence


def filterbank(samples: Samples) -> Frames:
    """The 40 log-mel energies of each window of 25 ms, one every 10 ms: (frames, 40).

    The same as Kaldi's compute-fbank-feats with --num-mel-bins=40 --dither=0. A last window that
    is not whole is left out.

    Args:
        samples: at 16 kHz, in -1..1, at least one window.
    """
    bank = FrameStream()
    bank.accept(samples)
    return bank.frames()


class FrameStream:
    """Frames of audio that arrives piece by piece: the same as of the whole."""

    def __init__(self) -> None:
        self._bank = kaldi_native_fbank.OnlineFbank(_options())
        self._taken = 0

    def accept(self, samples: Samples) -> None:
        """Adds samples at 16 kHz, in -1..1."""
        self._bank.accept_waveform(RATE, samples * np.float32(FULL_SCALE))

    def frames(self) -> Frames:
        """The frames that are ready and were not returned before."""
        first, self._taken = self._taken, self._bank.num_frames_ready
        ready = [self._bank.get_frame(index) for index in range(first, self._taken)]
        frames = np.array(ready, dtype=np.float32).reshape(-1, BINS)
        self._bank.pop(len(ready))
        return frames


def normalized(utterances: Sequence[Frames]) -> list[Frames]:
    """The same frames with mean 0 and variance 1 in each bin, over all utterances together."""
    frames = sum(len(utterance) for utterance in utterances)
    mean = sum(utterance.sum(0, dtype=np.float64) for utterance in utterances) / frames
    squares = sum(np.square(utterance - mean).sum(0) for utterance in utterances)
    deviation = np.maximum(np.sqrt(squares / frames), SMALLEST_DEVIATION)
    return [((utterance - mean) / deviation).astype(np.float32) for utterance in utterances]


def normalized_by(
    kind: Normalization, utterances: Sequence[Frames], speakers: Sequence[str]
) -> list[Frames]:
    """Each utterance normalized with all of its speaker's, or alone, or not."""
    if kind == "none":
        return list(utterances)
    if kind == "utterance":
        return [normalized([utterance])[0] for utterance in utterances]
    result = list(utterances)
    for speaker in dict.fromkeys(speakers):
        places = [place for place, name in enumerate(speakers) if name == speaker]
        for place, frames in zip(places, normalized([utterances[p] for p in places]), strict=True):
            result[place] = frames
    return result


def frame_count(seconds: float) -> int:
    """How many frames audio of this length has."""
    return max(0, 1 + int((seconds * 1_000 - WINDOW_MS) / STEP_MS))


def _options() -> kaldi_native_fbank.FbankOptions:
    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.samp_freq = RATE
    options.frame_opts.frame_length_ms = WINDOW_MS
    options.frame_opts.frame_shift_ms = STEP_MS
    options.frame_opts.dither = 0.0
    options.mel_opts.num_bins = BINS
    return options
