"""Filterbanks, their normalization, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import soundfile
import torch

from linattn_lab.memory import peak_memory
from speech.corpora import Utterance
from speech.features import filterbank, load_frames, normalize_by, read_frames
from speech.sources import File
from tests.apps.ctc_speech.conftest import tone


@pytest.mark.parametrize("samples", [400, 559, 560, 16_000])
def test_a_frame_every_ten_milliseconds_without_dither(samples: int) -> None:
    frames = filterbank(tone(440, samples / 16_000))
    assert frames.shape == (1 + (samples - 400) // 160, 40)
    assert np.array_equal(frames, filterbank(tone(440, samples / 16_000)))


def test_a_tone_is_in_the_bins_of_its_pitch() -> None:
    low, high = (filterbank(tone(hertz, 0.2)).mean(0).argmax() for hertz in (300, 3_000))
    assert 3 < low < 12 and 25 < high < 36


def test_normalization_by_speaker_and_by_utterance() -> None:
    draws = np.random.default_rng(0)
    frames = [draws.normal(5, 3, (n, 40)).astype(np.float32) for n in (30, 50, 20)]
    by_speaker = normalize_by("speaker", frames, ["a", "b", "a"])
    together = np.concatenate([by_speaker[0], by_speaker[2]])
    np.testing.assert_allclose(together.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(together.std(0), 1, atol=1e-4)
    for one in normalize_by("utterance", frames, ["a", "b", "a"]):
        np.testing.assert_allclose(one.std(0), 1, atol=1e-4)
    assert normalize_by("none", frames, ["a", "b", "a"])[1] is frames[1]
    silence = filterbank(np.zeros(1_600, np.float32))
    assert np.isfinite(normalize_by("utterance", [silence], ["a"])[0]).all()


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    for index in range(3):
        soundfile.write(tmp_path / f"{index}.wav", tone(300 * (index + 1), 0.3), 16_000)
    return [Utterance(str(i), "a", File(tmp_path / f"{i}.wav")) for i in range(3)]


def test_frames_are_kept(tmp_path: Path, utterances: list[Utterance]) -> None:
    cache = tmp_path / "cache"
    first = load_frames(utterances, "speaker", cache)
    (path,) = cache.iterdir()
    written = path.stat().st_mtime_ns
    again = load_frames(utterances, "speaker", cache)
    assert path.stat().st_mtime_ns == written and list(first) == list(again) == ["0", "1", "2"]
    assert all(map(np.array_equal, first.values(), again.values()))
    load_frames(utterances, "utterance", cache)
    load_frames(utterances, "speaker", cache, speed=1.1)
    soundfile.write(tmp_path / "0.wav", tone(700, 0.4), 16_000)
    load_frames(utterances, "speaker", cache)
    assert len(list(cache.iterdir())) == 4
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match=path.name):
        read_frames(path)


def test_kept_frames_are_mapped_and_not_read(tmp_path: Path) -> None:
    size = 64_000_000
    frames = np.zeros((size // 80, 40), np.float16)
    path = tmp_path / "frames.safetensors"
    content = {"frames": frames, "lengths": np.full(8, len(frames) // 8)}
    safetensors.numpy.save_file(content, path, {"skipped": "{}"})
    (of, reasons), rise = peak_memory(torch.device("cpu"), lambda: read_frames(path))
    assert len(of) == 8 and of[7].shape == (len(frames) // 8, 40) and not reasons
    assert rise < size / 4


def test_bad_audio_is_refused_or_left_out(tmp_path: Path, utterances: list[Utterance]) -> None:
    (tmp_path / "1.wav").write_bytes(b"")
    cache = tmp_path / "cache"
    with pytest.raises(ValueError, match=r"1\.wav"):
        load_frames(utterances, "speaker", cache)
    assert list(load_frames(utterances, "speaker", cache, bad_input="skip")) == ["0", "2"]
    with pytest.raises(ValueError, match=r"1\.wav"):  # from the cache, too
        load_frames(utterances, "speaker", cache)
