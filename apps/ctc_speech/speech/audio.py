"""Audio files as samples: one channel, 16 kHz, checked."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from linattn_core.errors import expected
from speech.sources import Source

Samples = npt.NDArray[np.float32]
Channels = Literal["average", "refuse"]

RATE = 16_000  # samples per second, of everything that leaves this module
WINDOW_SECONDS = 0.025


def read_audio(
    source: Source,
    *,
    start: float = 0.0,
    end: float | None = None,
    channels: Channels = "average",
) -> Samples:
    """The samples of a WAV, FLAC, OGG or NIST SPHERE file, in -1..1, at 16 kHz.

    Args:
        start, end: seconds, of a part of the file; the whole file if not given.
        channels: what becomes of a file with several: average takes their mean, sample by sample;
            refuse raises.

    Raises:
        ValueError: no audio, damaged, several channels that are refused, shorter than one window
            of 25 ms, or a sample that is not finite.
        OSError: it is not there.
    """
    samples, rate = _decoded(source, start, end)
    if samples.shape[1] > 1 and channels == "refuse":
        advice = "average the channels with --channels average"
        raise ValueError(expected(source.name, "one channel", samples.shape[1], advice))
    mono = samples.mean(axis=1, dtype=np.float32)
    require_samples(mono, rate, source.name)
    return at_rate(mono, rate)


def at_rate(samples: Samples, rate: float) -> Samples:
    """Samples that were taken at `rate` a second, at 16 kHz; band-limited."""
    if rate == RATE:
        return samples
    return np.asarray(soxr.resample(samples, rate, RATE), dtype=np.float32)


def at_speed(samples: Samples, speed: float) -> Samples:
    """The same, spoken `speed` times as fast and as much higher, as a tape that runs faster."""
    return at_rate(samples, RATE * speed)


def require_samples(samples: Samples, rate: float, name: str) -> None:
    """Refuses audio that is shorter than a window, or has a sample that is not finite.

    Raises:
        ValueError: in one sentence.
    """
    seconds = len(samples) / rate
    if seconds < WINDOW_SECONDS:
        raise ValueError(
            expected(name, f"at least one window of {WINDOW_SECONDS} s", f"{seconds:.4f} s")
        )
    broken = int((~np.isfinite(samples)).sum())
    if broken:
        raise ValueError(expected(name, "finite samples", f"{broken} NaN or infinite"))


def _decoded(source: Source, start: float, end: float | None) -> tuple[Samples, int]:
    """(samples, channels) in -1..1, and samples per second."""
    content = source.content()
    try:
        with soundfile.SoundFile(content) as file:
            first, last = _span(file, start, end, source.name)
            file.seek(first)
            samples = file.read(last - first, dtype="float32", always_2d=True)
            rate = file.samplerate
    except (soundfile.LibsndfileError, RuntimeError) as error:
        wanted = "audio as WAV, FLAC, OGG or NIST SPHERE"
        raise ValueError(expected(source.name, wanted, error, "restore or remove it")) from error
    if len(samples) < last - first:
        got = f"{len(samples)}; it is cut short"
        raise ValueError(expected(source.name, f"{last - first} samples", got))
    return samples, rate


def _span(file: soundfile.SoundFile, start: float, end: float | None, name: str) -> tuple[int, int]:
    first = round(start * file.samplerate)
    last = file.frames if end is None else min(file.frames, round(end * file.samplerate))
    if not 0 <= first <= last:
        length = file.frames / file.samplerate
        wanted = f"a part within its {length:.2f} s"
        raise ValueError(expected(name, wanted, f"{start} to {end} s"))
    return first, last
