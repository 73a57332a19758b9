"""Audio files as samples: formats, rates, channels, and what is refused."""

from __future__ import annotations

import os
import re
import tarfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech.audio import at_speed, read_audio
from speech.sources import Ark, Command, File, Member
from tests.apps.ctc_speech.conftest import tone


@pytest.mark.parametrize(
    ("suffix", "format", "subtype"),
    [("wav", "WAV", "PCM_16"), ("flac", "FLAC", "PCM_16"), ("sph", "NIST", "PCM_16")],
)
def test_formats_without_loss(tmp_path: Path, suffix: str, format: str, subtype: str) -> None:
    path = tmp_path / f"a.{suffix}"
    soundfile.write(path, tone(440, 0.5), 16_000, format=format, subtype=subtype)
    np.testing.assert_allclose(read_audio(File(path)), tone(440, 0.5), atol=1 / 32_000)


def test_ogg_comes_close_to_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.ogg"
    soundfile.write(path, tone(440, 0.5), 16_000)
    assert np.abs(read_audio(File(path)) - tone(440, 0.5)).mean() < 0.02


@pytest.mark.parametrize("rate", [8_000, 22_050, 44_100])
def test_other_rates_are_resampled(tmp_path: Path, rate: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 0.5, rate), rate, subtype="FLOAT")
    samples = read_audio(File(path))
    assert len(samples) == 8_000
    middle = slice(1_000, -1_000)  # a burst that begins at once rings
    np.testing.assert_allclose(samples[middle], tone(440, 0.5)[middle], atol=2e-3)


def test_a_speed_changes_length_and_pitch() -> None:
    assert len(at_speed(tone(440, 1.1), 1.1)) == 16_000
    middle = slice(1_000, -1_000)
    np.testing.assert_allclose(
        at_speed(tone(400, 1.1), 1.1)[middle], tone(440, 1.0)[middle], atol=2e-3
    )


def test_channels_are_averaged_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "stereo.wav"
    both = np.stack([tone(440, 0.5), np.zeros(8_000, np.float32)], axis=1)
    soundfile.write(path, both, 16_000, subtype="FLOAT")
    np.testing.assert_allclose(read_audio(File(path)), tone(440, 0.5) / 2, atol=1e-6)
    with pytest.raises(ValueError, match="expected one channel, got 2"):
        read_audio(File(path), channels="refuse")


def test_a_part_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 1.0), 16_000, subtype="FLOAT")
    part = read_audio(File(path), start=0.25, end=0.5)
    np.testing.assert_allclose(part, tone(440, 1.0)[4_000:8_000], atol=1e-6)
    late = read_audio(File(path), start=0.5, end=1.4)
    np.testing.assert_allclose(late, tone(440, 1.0)[8_000:], atol=1e-6)
    for start, end in ((2.0, 3.0), (0.5, 1.6), (-0.1, 0.5), (0.5, 0.4)):
        with pytest.raises(ValueError, match=r"within its 1\.00 s"):
            read_audio(File(path), start=start, end=end)


def test_an_ark_holds_files_at_offsets(tmp_path: Path) -> None:
    wav, ark = tmp_path / "a.wav", tmp_path / "a.ark"
    soundfile.write(wav, tone(440, 0.5), 16_000)
    ark.write_bytes(b"one " + wav.read_bytes() + b"two " + wav.read_bytes())
    for offset in (4, 8 + wav.stat().st_size):
        assert np.array_equal(read_audio(Ark(ark, offset)), read_audio(File(wav)))
    with pytest.raises(ValueError, match="expected a WAV file"):
        read_audio(Ark(ark, 0))


def test_the_output_of_a_command(tmp_path: Path) -> None:
    wav = tmp_path / "a.wav"
    soundfile.write(wav, tone(440, 0.5), 16_000)
    assert np.array_equal(read_audio(Command(f"cat {wav}")), read_audio(File(wav)))
    with pytest.raises(ValueError, match="exit code 3"):
        read_audio(Command("exit 3"))


@pytest.mark.parametrize(
    ("samples", "sentence"),
    [
        (np.zeros(0, np.float32), "at least one window of 0.025 s, got 0.0000 s"),
        (np.zeros(399, np.float32), "at least one window of 0.025 s, got 0.0249 s"),
        (np.full(800, np.nan, np.float32), "expected finite samples, got 800 NaN or infinite"),
    ],
)
def test_audio_that_cannot_be_used_is_refused(
    tmp_path: Path, samples: np.ndarray, sentence: str
) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, samples, 16_000, subtype="FLOAT")
    with pytest.raises(ValueError, match=sentence):
        read_audio(File(path))


@pytest.mark.parametrize("content", [b"", b"RIFF\0\0\0\0WAVE", b"no audio at all" * 100])
def test_damaged_files_are_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.wav"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"broken\.wav"):
        read_audio(File(path))


@pytest.mark.parametrize("format", ["WAV", "NIST", "FLAC", "OGG"])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, format: str) -> None:
    name = f"a.{format}"
    path = tmp_path / name
    soundfile.write(path, tone(440, 0.5), 16_000, format=format)
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(path, name)
    for source in (File(path), Member(archive, name)):
        with pytest.raises(ValueError, match=f"{name}: expected"):
            read_audio(source)


@pytest.mark.parametrize("bytes_in_header", [0x7FFF_FFFF, 0xFFFF_FFFF])
def test_a_streamed_wav_has_no_length(tmp_path: Path, bytes_in_header: int) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 0.5), 16_000)
    content = bytearray(path.read_bytes())
    place = content.index(b"data") + 4
    content[place : place + 4] = bytes_in_header.to_bytes(4, "little")
    path.write_bytes(content)
    assert len(read_audio(File(path))) == 8_000


def test_headers_that_claim_too_much_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    soundfile.write(path, tone(440, 0.5), 16_000)
    content = bytearray(path.read_bytes())
    content[22:26] = b"\xff" * 4  # the lower bits of the number of samples
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.flac: expected"):
        read_audio(File(path))


def test_a_rate_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(440, 0.5), 1)
    with pytest.raises(ValueError, match="at least 1000 samples a second, got 1"):
        read_audio(File(path))


@pytest.mark.parametrize("name", [b"a.raw", b"a\xff.wav"])
def test_names_that_soundfile_refuses_are_named(tmp_path: Path, name: bytes) -> None:
    soundfile.write(tmp_path / "a.wav", tone(440, 0.5), 16_000)
    path = (tmp_path / "a.wav").rename(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    with pytest.raises(ValueError, match=re.escape(f"{path}: expected audio")):
        read_audio(File(path))


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="expected an audio file, got no file"):
        read_audio(File(tmp_path / "none.wav"))
    (tmp_path / "a.tar").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="expected a whole tar archive"):
        read_audio(Member(tmp_path / "a.tar", "x.wav"))
