"""Frames of sound: the logarithms of Kaldi's mel filterbank, normalized, kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import kaldi_native_fbank
import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_models.basics.files import replace_file
from speech.audio import RATE, Samples, change_speed, read_audio, require_samples
from speech.corpora import BadInput, Utterance

Frames = npt.NDArray[np.floating[Any]]  # (frames, BINS): float32, in a kept file float16
Normalization = Literal["speaker", "utterance", "running", "none"]

VERSION = 1  # of the frames; a new one computes them again
BINS = 40
WINDOW_MS = 25.0
STEP_MS = 10.0
STEP_SECONDS = STEP_MS / 1_000
FULL_SCALE = 32_768.0  # Kaldi takes samples as 16-bit integers
SMALLEST_DEVIATION = 1e-3  # of a bin that never changes, as in digital silence


class Filterbank:
    """The 40 log-mel energies of each window of 25 ms, one every 10 ms, as samples arrive.

    The same as Kaldi's compute-fbank-feats with --num-mel-bins=40 --dither=0. A last window that
    is not whole is left out.
    """

    def __init__(self) -> None:
        options = kaldi_native_fbank.FbankOptions()
        options.frame_opts.samp_freq = RATE
        options.frame_opts.frame_length_ms = WINDOW_MS
        options.frame_opts.frame_shift_ms = STEP_MS
        options.frame_opts.dither = 0.0
        options.mel_opts.num_bins = BINS
        self._bank = kaldi_native_fbank.OnlineFbank(options)
        self._taken = 0

    def accept(self, samples: Samples) -> None:
        """Takes more samples, at 16 kHz, in -1..1."""
        self._bank.accept_waveform(RATE, samples * np.float32(FULL_SCALE))

    @property
    def num_frames(self) -> int:
        """Frames that `take` returns."""
        return int(self._bank.num_frames_ready) - self._taken

    def take(self) -> Frames:
        """The frames (n, 40) of the windows that have become whole."""
        places = range(self._taken, self._bank.num_frames_ready)
        frames = np.array([self._bank.get_frame(place) for place in places], dtype=np.float32)
        self._bank.pop(len(places))
        self._taken += len(places)
        return frames.reshape(-1, BINS)


def filterbank(samples: Samples) -> Frames:
    """The frames (n, 40) of a whole recording."""
    bank = Filterbank()
    bank.accept(samples)
    return bank.take()


def measure(utterances: Sequence[Frames]) -> tuple[np.ndarray, np.ndarray]:
    """The mean and the variance (40,) of each bin, over all utterances together."""
    count = sum(map(len, utterances))
    mean = sum(frames.sum(0, dtype=np.float64) for frames in utterances) / count
    squares = sum(np.square(frames - mean).sum(0) for frames in utterances)
    return np.asarray(mean), np.asarray(squares / count)


def normalize(utterances: Sequence[Frames]) -> list[Frames]:
    """The same frames with mean 0 and variance 1 in each bin, over all utterances together."""
    mean, variance = measure(utterances)
    deviation = np.maximum(np.sqrt(variance), SMALLEST_DEVIATION)
    return [((utterance - mean) / deviation).astype(np.float32) for utterance in utterances]


def normalize_by(
    kind: Normalization, utterances: Sequence[Frames], speakers: Sequence[str]
) -> list[Frames]:
    """Each utterance normalized with all of its speaker's, or alone, or not.

    "running" leaves it to `Speech`, which normalizes as it makes batches.
    """
    if kind in ("none", "running"):
        return list(utterances)
    if kind == "utterance":
        return [normalize([utterance])[0] for utterance in utterances]
    result = list(utterances)
    for speaker in dict.fromkeys(speakers):
        places = [place for place, name in enumerate(speakers) if name == speaker]
        for place, frames in zip(places, normalize([utterances[p] for p in places]), strict=True):
            result[place] = frames
    return result


def load_frames(
    utterances: Sequence[Utterance],
    normalization: Normalization,
    cache: Path,
    *,
    speed: float = 1.0,
    bad_input: BadInput = "refuse",
) -> dict[str, Frames]:
    """The frames of the utterances by id, from `cache` if they were computed before.

    Args:
        speed: of the speech; 1.1 is a tenth faster and higher.
        bad_input: whether audio that cannot be read is refused, or left out.

    Cost: a core reads and transforms more than 100 seconds of speech a second.
    """
    path = cache / f"frames-{_digest(utterances, normalization, speed)}.safetensors"
    if not path.exists():
        content = _compute(utterances, normalization, speed, bad_input)
        cache.mkdir(parents=True, exist_ok=True)
        replace_file(path, content)
    frames, reasons = read_frames(path)
    if reasons and bad_input == "refuse":
        raise ValueError(next(iter(reasons.values())))
    readable = [item.id for item in utterances if item.id not in reasons]
    return dict(zip(readable, frames, strict=True))


def read_frames(path: Path) -> tuple[list[Frames], dict[str, str]]:
    """The frames of each utterance, mapped, and why others have none, by id."""
    try:
        # As torch tensors, which are mapped: frames are read from the disk where they are used.
        with safetensors.safe_open(path, "pt") as file:
            reasons: dict[str, str] = json.loads(file.metadata()["skipped"])
            whole, lengths = (file.get_tensor(name).numpy() for name in ("frames", "lengths"))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        advice = "remove it, and it is made again"
        raise ValueError(expected(str(path), "frames", error, advice)) from error
    return np.split(whole, np.cumsum(lengths)[:-1]), reasons


def _compute(
    utterances: Sequence[Utterance],
    normalization: Normalization,
    speed: float,
    bad_input: BadInput,
) -> bytes:
    """The content of the file: frames of utterances that can be read, and why others cannot."""
    frames: list[Frames] = []
    speakers: list[str] = []
    reasons: dict[str, str] = {}
    for item in tqdm(utterances, f"features, speed {speed:g}", disable=None):
        try:
            frames.append(_utterance_frames(item, speed))
            speakers.append(item.speaker)
        except (ValueError, OSError) as error:
            reasons[item.id] = f"{item.id}: {error}"
            if bad_input == "refuse":
                raise ValueError(reasons[item.id]) from error
    if not frames:
        raise ValueError(expected("the corpus", "audio that can be read", "none"))
    frames = normalize_by(normalization, frames, speakers)
    tensors: dict[str, npt.NDArray[Any]] = {
        # Halves the file; values of about 1 keep three digits.
        "frames": np.concatenate(frames).astype(np.float16),
        "lengths": np.array([len(item) for item in frames], dtype=np.int64),
    }
    return safetensors.numpy.save(tensors, metadata={"skipped": json.dumps(reasons)})


def _utterance_frames(item: Utterance, speed: float) -> Frames:
    samples = read_audio(item.source, start=item.start, end=item.end)
    if speed != 1.0:
        samples = change_speed(samples, speed)
        require_samples(samples, RATE, item.source.name)
    return filterbank(samples)


def _digest(utterances: Sequence[Utterance], normalization: Normalization, speed: float) -> str:
    """A name for the frames: another one where audio, speaker or normalization differ."""
    content: dict[str, Any] = {
        "version": VERSION,
        "normalization": normalization,
        "speed": speed,
        "utterances": [
            (item.id, item.speaker, item.source.stamp(), item.start, item.end)
            for item in utterances
        ],
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
