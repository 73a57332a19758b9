"""Filterbanks, their normalization, and the file that keeps them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import soundfile
import torch

from linattn_models.memory import peak_memory
from speech.augmentation import SpecAugment
from speech.corpora import Utterance
from speech.dataset import FeatureSettings, framed, read_frames
from speech.features import FrameStream, filterbank, frame_count, normalized_by
from speech.sources import File
from tests.apps.ctc_speech.conftest import tone


@pytest.mark.parametrize("samples", [400, 559, 560, 16_000])
def test_a_frame_every_ten_milliseconds(samples: int) -> None:
    frames = filterbank(tone(440, samples / 16_000))
    assert frames.shape == (1 + (samples - 400) // 160, 40)
    assert len(frames) == frame_count(samples / 16_000)


def test_a_tone_is_in_the_bins_of_its_pitch() -> None:
    low, high = (filterbank(tone(hertz, 0.2)).mean(0).argmax() for hertz in (300, 3_000))
    assert 3 < low < 12 and 25 < high < 36


def test_frames_have_no_dither() -> None:
    assert np.array_equal(filterbank(tone(440, 0.3)), filterbank(tone(440, 0.3)))


def test_pieces_give_the_frames_of_the_whole() -> None:
    samples, stream, pieces = tone(440, 0.7), FrameStream(), []
    for piece in np.array_split(samples, 9):
        stream.accept(piece)
        pieces.append(stream.frames())
    assert np.array_equal(np.concatenate(pieces), filterbank(samples))


def test_normalization_by_speaker_and_by_utterance() -> None:
    draws = np.random.default_rng(0)
    frames = [draws.normal(5, 3, (n, 40)).astype(np.float32) for n in (30, 50, 20)]
    by_speaker = normalized_by("speaker", frames, ["a", "b", "a"])
    together = np.concatenate([by_speaker[0], by_speaker[2]])
    np.testing.assert_allclose(together.mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(together.std(0), 1, atol=1e-4)
    for one in normalized_by("utterance", frames, ["a", "b", "a"]):
        np.testing.assert_allclose(one.std(0), 1, atol=1e-4)
    assert normalized_by("none", frames, ["a", "b", "a"])[1] is frames[1]


def test_silence_is_finite() -> None:
    frames = filterbank(np.zeros(1_600, np.float32))
    assert np.isfinite(normalized_by("utterance", [frames], ["a"])[0]).all()


@pytest.fixture
def utterances(tmp_path: Path) -> list[Utterance]:
    for index in range(3):
        soundfile.write(tmp_path / f"{index}.wav", tone(300 * (index + 1), 0.3), 16_000)
    return [Utterance(str(i), "a", File(tmp_path / f"{i}.wav")) for i in range(3)]


def test_frames_are_kept(tmp_path: Path, utterances: list[Utterance]) -> None:
    first = framed(utterances, FeatureSettings(), tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    written = path.stat().st_mtime_ns
    again = framed(utterances, FeatureSettings(), tmp_path / "cache")
    assert path.stat().st_mtime_ns == written
    assert all(map(np.array_equal, first.frames, again.frames))
    framed(utterances, FeatureSettings("utterance"), tmp_path / "cache")
    framed(utterances, FeatureSettings(), tmp_path / "cache", speed=1.1)
    soundfile.write(tmp_path / "0.wav", tone(700, 0.4), 16_000)
    framed(utterances, FeatureSettings(), tmp_path / "cache")
    assert len(list((tmp_path / "cache").iterdir())) == 4


def test_kept_frames_are_mapped_and_not_read(tmp_path: Path) -> None:
    size = 64_000_000
    frames = np.zeros((size // 80, 40), np.float16)
    path = tmp_path / "frames.safetensors"
    content = {"frames": frames, "lengths": np.full(8, len(frames) // 8)}
    safetensors.numpy.save_file(content, path, {"skipped": "{}"})
    (of, reasons), rise = peak_memory(torch.device("cpu"), lambda: read_frames(path))
    assert len(of) == 8 and of[7].shape == (len(frames) // 8, 40) and not reasons
    assert rise < size / 4


def test_a_damaged_file_of_frames_is_named(tmp_path: Path, utterances: list[Utterance]) -> None:
    framed(utterances, FeatureSettings(), tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ValueError, match="remove it, and it is made again"):
        framed(utterances, FeatureSettings(), tmp_path / "cache")


def test_bad_audio_is_refused_or_counted(tmp_path: Path, utterances: list[Utterance]) -> None:
    (tmp_path / "1.wav").write_bytes(b"")
    with pytest.raises(ValueError, match=r"1\.wav"):
        framed(utterances, FeatureSettings(), tmp_path / "cache")
    kept = framed(utterances, FeatureSettings(), tmp_path / "cache", bad_input="skip")
    assert [item.id for item in kept.utterances] == ["0", "2"]
    assert kept.skipped == {"audio that cannot be read": 1}
    with pytest.raises(ValueError, match=r"1\.wav"):  # from the cache, too
        framed(utterances, FeatureSettings(), tmp_path / "cache")


def test_masks_are_bands_and_drawn_from_the_generator_of_torch() -> None:
    frames = torch.ones(100, 40)
    torch.manual_seed(3)
    first = SpecAugment().masked(frames)
    torch.manual_seed(3)
    assert torch.equal(first, SpecAugment().masked(frames))
    assert frames.eq(1).all()
    assert 0 < first.eq(0).sum() < first.numel()
    assert torch.equal(SpecAugment(time_masks=0, bin_masks=0).masked(frames), frames)
