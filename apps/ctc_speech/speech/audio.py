"""Audio as samples: one channel, 16 kHz, checked."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import soundfile
import soxr

from linattn_core.errors import expected
from speech.sources import STREAMED, Source

Samples = npt.NDArray[np.float32]

RATE = 16_000  # samples per second of everything that leaves this module
WINDOW_SECONDS = 0.025
LOWEST_RATE = 1_000  # a header with less is damaged; resampling would fill the memory
LOUDEST = 8.0  # in magnitude: floating point may pass 1, integers that were not divided pass this
MOST_SAMPLES = 1 << 28  # of a recording or its part, all channels together; 4.6 hours of one
CANCELED = 0.01  # of the channels' power: if their mean has less, they cancel
OVERSHOOT_SECONDS = 0.5  # a part may end this long after its file, as Kaldi allows

_HEAD = 1_024  # bytes
_MOST_CHUNKS = 10_000  # of a WAV file, before its samples
_PIECE = 1 << 20  # samples read at once: a damaged header claims any number
_UNKNOWN = 0xFFFF_FFFF
_WAV_BYTES = re.compile(r"^data : (\d+) \(should be (\d+)\)", re.MULTILINE)
_SPHERE_SAMPLES = re.compile(rb"sample_count -i (\d+)")


def read_audio(source: Source, *, start: float = 0.0, end: float | None = None) -> Samples:
    """The samples of a WAV, FLAC, OGG or NIST SPHERE file, in -1..1, at 16 kHz.

    Of several channels it is the mean, sample by sample.

    Args:
        start, end: seconds, of a part of the file; the whole file if not given.

    Raises:
        ValueError: no audio, damaged, cut short, several channels that cancel in their mean,
            shorter than one window of 25 ms, hours long, fewer than 1,000 samples a second, or a
            sample that is NaN or far outside of -1..1.
        OSError: the file does not exist.
    """
    samples, rate = _decode(source, start, end)
    require_samples(samples, rate, source.name)
    return resample(_average(samples, source.name), rate)


def resample(samples: Samples, rate: float) -> Samples:
    """Samples that were taken at `rate` a second, at 16 kHz; band-limited."""
    if rate == RATE:
        return samples
    return np.asarray(soxr.resample(samples, rate, RATE), dtype=np.float32)


def change_speed(samples: Samples, speed: float) -> Samples:
    """The same, spoken `speed` times as fast and as much higher, as a tape that runs faster."""
    return resample(samples, RATE * speed)


def require_samples(samples: Samples, rate: float, name: str) -> None:
    """Refuses audio that is shorter than a window, and what `require_range` refuses."""
    seconds = len(samples) / rate
    if seconds < WINDOW_SECONDS:
        wanted = f"at least one window of {WINDOW_SECONDS} s"
        raise ValueError(expected(name, wanted, f"{seconds:.4f} s"))
    require_range(samples, name)


def require_range(samples: Samples, name: str) -> None:
    """Refuses samples that are NaN or far outside of -1..1, such as integers cast to float."""
    if others := samples.size - int((np.abs(samples) <= LOUDEST).sum()):
        wanted, got = "samples in -1..1", f"{others} that are NaN or beyond {LOUDEST:g}"
        raise ValueError(expected(name, wanted, got, "divide samples of 16 bits by 32,768"))


def _average(samples: Samples, name: str) -> Samples:
    """The mean of the channels; refused where they cancel, as with one of two in antiphase."""
    mean: Samples = samples.mean(axis=1, dtype=np.float32)
    each, left = (float(np.square(x).mean(dtype=np.float64)) for x in (samples, mean))
    if left < CANCELED * each:
        got = f"{left / each:.2%} of their power in it"
        advice = "keep one channel, as by: sox IN OUT remix 1"
        raise ValueError(expected(name, "channels that do not cancel in their mean", got, advice))
    return mean


def _decode(source: Source, start: float, end: float | None) -> tuple[Samples, int]:
    """(samples, channels) in -1..1, and samples per second."""
    with source.open() as opened:
        head = opened.read(_HEAD)
        opened.seek(0)
        content = _order_chunks(opened)
        try:
            with soundfile.SoundFile(_hide_name(content)) as file:
                _require_whole(file, head, source.name)
                first, last = _span(file, start, end, source.name)
                rate = file.samplerate
                if file.seekable():
                    file.seek(first)
                else:  # as of GSM 6.10: a state goes through all samples
                    _read(file, first)
                samples = _read(file, last - first)
        except RuntimeError as error:  # of libsndfile
            wanted = "audio as WAV, FLAC, OGG or NIST SPHERE"
            got = getattr(error, "error_string", error)
            packed = head.startswith(b"NIST_1A") and b"shorten" in head
            advice = "unpack it with sph2pipe -f wav" if packed else "restore or remove it"
            raise ValueError(expected(source.name, wanted, got, advice)) from error
    if len(samples) < last - first:
        raise _cut_short(source.name, f"{last - first} samples", len(samples))
    if rate < LOWEST_RATE:
        raise ValueError(expected(source.name, f"at least {LOWEST_RATE} samples a second", rate))
    return samples, rate


def _hide_name(content: BinaryIO) -> Any:
    """The same file without its name: soundfile believes a name that ends in .raw."""
    methods = ("read", "readinto", "seek", "tell")
    return SimpleNamespace(**{x: getattr(content, x) for x in methods if hasattr(content, x)})


def _order_chunks(content: BinaryIO) -> BinaryIO:
    """The content of a file; of an unusual WAV file as libsndfile reads it.

    That is with the format before the samples, and with their size, which is 0 where the file was
    streamed: then they end with the file.
    """
    chunks, usual = _find_chunks(content)
    data, size = chunks.get(b"data", (0, 0))
    content.seek(0)
    if not data or b"fmt " not in chunks or (usual and size):
        return content
    whole = memoryview(content.read())
    before = [chunks[name] for name in (b"fmt ", b"fact") if name in chunks]
    header = b"".join(whole[place : place + 8 + length] for place, length in before)
    header += b"data" + (size or _UNKNOWN).to_bytes(4, "little")
    return io.BytesIO(b"RIFF\xff\xff\xff\xffWAVE" + header + whole[data + 8 :])


def _find_chunks(content: BinaryIO) -> tuple[dict[bytes, tuple[int, int]], bool]:
    """Where a WAV file's format and samples begin, and their sizes as they are stated.

    The bool tells whether the format comes first, and chunks of odd sizes are padded.
    """
    head = content.read(12)
    chunks: dict[bytes, tuple[int, int]] = {}
    usual = True
    for _ in range(_MOST_CHUNKS if head[:4] == b"RIFF" and head[8:] == b"WAVE" else 0):
        place, header = content.tell(), content.read(8)
        if len(header) < 8 or {b"fmt ", b"data"} <= chunks.keys():
            break
        name, size = header[:4], int.from_bytes(header[4:], "little")
        usual = usual and place % 2 == 0 and (name != b"data" or b"fmt " in chunks)
        if name in (b"fmt ", b"fact", b"data"):
            chunks.setdefault(name, (place, size))
        content.seek(place + 8 + size)
        if size % 2 and content.read(1) != b"\0":  # it is no padding, but begins a name
            content.seek(place + 8 + size)
    return chunks, usual


def _read(file: soundfile.SoundFile, count: int) -> Samples:
    """The next `count` samples (samples, channels), or those that are there."""
    pieces = [np.zeros((0, file.channels), np.float32)]
    while count > 0:
        piece = file.read(min(count, _PIECE), dtype="float32", always_2d=True)
        if not len(piece):
            break
        pieces.append(piece)
        count -= len(piece)
    return np.concatenate(pieces)


def _require_whole(file: soundfile.SoundFile, head: bytes, name: str) -> None:
    """Refuses a file that has fewer samples than its header says; libsndfile would not."""
    if file.format == "NIST":
        samples = _SPHERE_SAMPLES.search(head)
        if samples and int(samples[1]) > file.frames:
            raise _cut_short(name, f"{int(samples[1])} samples", file.frames)
    if size := _WAV_BYTES.search(file.extra_info):
        stated, there = map(int, size.groups())
        if there < stated < STREAMED:
            raise _cut_short(name, f"{stated} bytes of samples", there)


def _cut_short(name: str, wanted: str, got: int) -> ValueError:
    return ValueError(expected(name, wanted, f"{got}; it is cut short"))


def _span(file: soundfile.SoundFile, start: float, end: float | None, name: str) -> tuple[int, int]:
    """The first sample of a part, and the one after its last."""
    rate, length = file.samplerate, file.frames / file.samplerate
    if not 0 <= start <= (length if end is None else min(end, length)) or (
        end is not None and end > length + OVERSHOOT_SECONDS
    ):
        wanted = f"a part within its {length:.2f} s"
        raise ValueError(expected(name, wanted, f"{start} to {end} s"))
    first = round(start * rate)
    last = file.frames if end is None else min(file.frames, round(end * rate))
    needed = (last - first) * file.channels * max(1.0, RATE / rate)
    if needed > MOST_SAMPLES:
        wanted = f"at most {MOST_SAMPLES:,} samples at 16 kHz"
        raise ValueError(expected(name, wanted, f"{needed:,.0f}", "cut it into parts"))
    return first, last
