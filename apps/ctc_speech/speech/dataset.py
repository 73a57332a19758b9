"""The frames of a corpus' utterances, computed once and kept in a file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors
import safetensors.numpy
from tqdm import tqdm

from linattn_core.errors import expected
from linattn_models.files import replace_file
from speech.audio import Channels, at_speed, read_audio, require_samples
from speech.corpora import BadInput, Utterance
from speech.features import Frames, Normalization, filterbank, normalized_by

VERSION = 1  # of the frames; a new one computes them again


@dataclass(frozen=True)
class FeatureSettings:
    """How frames are made of audio."""

    normalize: Normalization = "speaker"
    """What has mean 0 and variance 1 together: all of a speaker, an utterance, or nothing."""
    channels: Channels = "average"
    """What becomes of audio with several channels: their mean, or an error."""


@dataclass(frozen=True)
class Framed:
    """Utterances with their frames.

    Attributes:
        utterances: those whose audio could be read.
        frames: of each, (frames, 40) float16.
        skipped: how many were left out, by reason.
    """

    utterances: tuple[Utterance, ...]
    frames: tuple[Frames, ...]
    skipped: Counter[str] = field(default_factory=Counter)


def framed(
    utterances: Sequence[Utterance],
    settings: FeatureSettings,
    cache: Path,
    *,
    speed: float = 1.0,
    bad_input: BadInput = "refuse",
    progress: bool = False,
) -> Framed:
    """The utterances with their frames, from `cache` if they were computed before.

    Args:
        speed: of the speech; 1.1 is a tenth faster and higher.
        bad_input: whether audio that cannot be read is refused, or left out and counted.

    Raises:
        ValueError, OSError: naming the first audio that cannot be read, or a damaged cache.

    Cost: a core reads and transforms more than 100 seconds of speech a second.
    """
    path = cache / f"frames-{_digest(utterances, settings, speed)}.safetensors"
    if not path.exists():
        frames, reasons = _computed(utterances, settings, speed, bad_input, progress)
        cache.mkdir(parents=True, exist_ok=True)
        replace_file(path, _packed(frames, reasons))
    frames, reasons = read_frames(path)
    if reasons and bad_input == "refuse":
        raise ValueError(next(iter(reasons.values())))
    readable = tuple(item for item in utterances if item.id not in reasons)
    skipped = Counter({"audio that cannot be read": len(reasons)} if reasons else {})
    return Framed(readable, tuple(frames), skipped)


def _computed(
    utterances: Sequence[Utterance],
    settings: FeatureSettings,
    speed: float,
    bad_input: BadInput,
    progress: bool,
) -> tuple[list[Frames], dict[str, str]]:
    """The frames of the utterances that can be read, and why the others cannot, by id."""
    frames: list[Frames] = []
    speakers: list[str] = []
    reasons: dict[str, str] = {}
    for item in tqdm(utterances, desc=f"features, speed {speed:g}", disable=not progress):
        try:
            frames.append(utterance_frames(item, settings, speed))
            speakers.append(item.speaker)
        except (ValueError, OSError) as error:
            if bad_input == "refuse":
                raise
            reasons[item.id] = str(error)
    if not frames:
        raise ValueError(expected("the corpus", "audio that can be read", "none"))
    return normalized_by(settings.normalize, frames, speakers), reasons


def utterance_frames(item: Utterance, settings: FeatureSettings, speed: float = 1.0) -> Frames:
    """The frames of one utterance, not normalized.

    Raises:
        ValueError, OSError: its audio cannot be read.
    """
    samples = read_audio(item.source, start=item.start, end=item.end, channels=settings.channels)
    if speed != 1.0:
        samples = at_speed(samples, speed)
        require_samples(samples, 16_000, item.source.name)
    return filterbank(samples)


def _packed(frames: Sequence[Frames], reasons: dict[str, str]) -> bytes:
    tensors: dict[str, npt.NDArray[Any]] = {
        # Halves the file; values of about 1 keep three digits.
        "frames": np.concatenate(frames).astype(np.float16),
        "lengths": np.array([len(item) for item in frames], dtype=np.int64),
    }
    return safetensors.numpy.save(tensors, metadata={"skipped": json.dumps(reasons)})


def read_frames(path: Path) -> tuple[list[Frames], dict[str, str]]:
    """The frames of each utterance, mapped, and why others have none, by id.

    Raises:
        ValueError: a damaged file.
    """
    try:
        # As torch tensors, which are mapped: frames are read from the disk where they are used.
        with safetensors.safe_open(path, "pt") as file:
            reasons: dict[str, str] = json.loads(file.metadata()["skipped"])
            whole, lengths = (file.get_tensor(name).numpy() for name in ("frames", "lengths"))
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError) as error:
        advice = "remove it, and it is made again"
        raise ValueError(expected(str(path), "frames", error, advice)) from error
    return np.split(whole, np.cumsum(lengths)[:-1]), reasons


def _digest(utterances: Sequence[Utterance], settings: FeatureSettings, speed: float) -> str:
    """A name for the frames: another one where audio, speaker or settings differ."""
    content: dict[str, Any] = {
        "version": VERSION,
        "settings": vars(settings),
        "speed": speed,
        "utterances": [
            (item.id, item.speaker, item.source.stamp(), item.start, item.end)
            for item in utterances
        ],
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]
