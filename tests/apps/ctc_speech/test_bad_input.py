"""A corpus or recordings with every fault: the first is named, or all are left out and counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from tests.apps.app_scripts import Script
from tests.apps.ctc_speech.conftest import smoke_flags, tone, write_data_folder

WINDOW = 400  # samples


def _written(samples: np.ndarray, rate: int = 16_000) -> Callable[[Path], object]:
    return lambda path: soundfile.write(path, samples, rate, subtype="FLOAT")


# What becomes of a recording, what the error says of it, and what it is counted as.
FAULTS: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "gone": (Path.unlink, "expected an audio file, got no file", "audio that cannot be read"),
    "empty": (lambda path: path.write_bytes(b""), "audio as WAV", "audio that cannot be read"),
    "corrupt": (
        lambda path: path.write_bytes(path.read_bytes()[:30]),
        "audio as WAV",
        "audio that cannot be read",
    ),
    "cut": (
        lambda path: path.write_bytes(path.read_bytes()[:9_000]),
        "it is cut short",
        "audio that cannot be read",
    ),
    "short": (
        _written(np.zeros(WINDOW - 1, np.float32)),
        "at least one window of 0.025 s",
        "audio that cannot be read",
    ),
    "nan": (
        _written(np.full(16_000, np.nan, np.float32)),
        "expected finite samples, got 16000 NaN",
        "audio that cannot be read",
    ),
    "dense": (_written(tone(440, 0.06)), "frames for 3 phones", "more phones than frames"),
    "endless": (
        _written(np.tile(tone(440, 10.0), 100)),
        "at most 2400 frames, got 99998",
        "more than 2400 frames",
    ),
}


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Bursts of tones, to be damaged."""
    folder = tmp_path / "corpus"
    write_data_folder(folder / "train", speakers=3, each=6, seed=0)
    write_data_folder(folder / "test", speakers=1, each=2, seed=1)
    return folder


def damaged(corpus: Path, *faults: str) -> None:
    """One recording less of the training set for each fault; as many of each speaker stay."""
    for place, fault in enumerate(faults):
        FAULTS[fault][0](corpus / "train" / f"train-{place}.wav")


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_fault_is_named(fault: str, corpus: Path, tmp_path: Path, script: Script) -> None:
    for place in range(3):  # of whichever speakers train
        shutil.copy(corpus / "train" / f"train-{place}.wav", tmp_path)
        FAULTS[fault][0](corpus / "train" / f"train-{place}.wav")
    done = script("train", *smoke_flags(corpus, tmp_path / "run"))
    assert done.code == 2
    last = done.stderr.rstrip("\n").split("\n")[-1]
    assert FAULTS[fault][1] in last and "train-" in last
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_all_faults_are_left_out_and_counted(corpus: Path, tmp_path: Path, script: Script) -> None:
    damaged(corpus, *FAULTS)
    done = script("train", *smoke_flags(corpus, tmp_path / "run"), "--bad-input", "skip")
    assert done.code == 0, done.stderr
    counted = sum(
        int(line.split(": ")[1].split()[0])
        for line in done.stdout.splitlines()
        if "utterances left out" in line
    )
    assert counted == len(FAULTS)
    for reason in {reason for _, _, reason in FAULTS.values()}:
        assert reason in done.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if "loss" in line]
    assert losses and np.isfinite(losses).all()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_fault_of_held_out_speech_ends_a_run_before_its_training(
    split: str, corpus: Path, tmp_path: Path, script: Script
) -> None:
    write_data_folder(corpus / "dev", speakers=1, each=2, seed=2)
    place = corpus / split / f"{split}-0.wav"
    content = place.read_bytes()
    place.unlink()
    done = script("train", *smoke_flags(corpus, tmp_path / "run"))
    assert done.code == 2 and f"{split}-0.wav: expected an audio file, got no file" in done.stderr
    place.write_bytes(content)
    text = (corpus / split / "text").read_text()
    silent = [line.split()[0] for line in text.splitlines()]
    (corpus / split / "text").write_text("\n".join(silent))
    done = script("train", *smoke_flags(corpus, tmp_path / "run"))
    assert done.code == 2 and f"kaldi, {split}: expected an utterance with phones" in done.stderr
    assert not (tmp_path / "run").exists()


def test_stereo_and_eight_kilohertz_are_read(corpus: Path, tmp_path: Path, script: Script) -> None:
    stereo = np.stack([tone(440, 0.8)] * 2, axis=1)
    for place in range(3):
        soundfile.write(corpus / "train" / f"train-{place}.wav", stereo, 16_000)
        soundfile.write(corpus / "train" / f"train-{place + 3}.wav", tone(440, 0.8, 8_000), 8_000)
    done = script("train", *smoke_flags(corpus, tmp_path / "run"), "--steps", 2)
    assert done.code == 0, done.stderr
    refused = script("train", *smoke_flags(corpus, tmp_path / "no"), "--channels", "refuse")
    assert refused.code == 2 and "expected one channel, got 2" in refused.stderr


# What transcribe.py says of a recording; it knows no phones that could be too many.
RECORDINGS = {name: sentence for name, (_, sentence, _) in FAULTS.items() if name != "dense"}
RECORDINGS["endless"] = "at most 24000 frames, got 99998"


@pytest.fixture
def recordings(tones: Path, tmp_path: Path) -> list[Path]:
    """Three recordings, to be damaged."""
    return [Path(shutil.copy(tones / "test" / f"test-{n}.wav", tmp_path)) for n in range(3)]


@pytest.mark.parametrize("fault", RECORDINGS)
def test_what_was_recognized_before_a_fault_is_printed(
    fault: str, recordings: list[Path], smoke_run: Path, script: Script
) -> None:
    FAULTS[fault][0](recordings[1])
    done = script("transcribe", "--run", smoke_run, "--json", *recordings)
    assert done.code == 2
    assert [item["file"] for item in json.loads(done.stdout)] == [str(recordings[0])]
    assert RECORDINGS[fault] in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("fault", RECORDINGS)
def test_a_bad_recording_is_named_and_left_out(
    fault: str, recordings: list[Path], smoke_run: Path, script: Script
) -> None:
    FAULTS[fault][0](recordings[1])
    flags = ["--run", smoke_run, "--json", "--bad-input", "skip"]
    done = script("transcribe", *flags, *recordings)
    assert done.code == 0, done.stderr
    named = [item["file"] for item in json.loads(done.stdout)]
    assert named == [str(recordings[0]), str(recordings[2])]
    sentence, count = done.stderr.splitlines()
    assert RECORDINGS[fault] in sentence and str(recordings[1]) in sentence
    assert count == "1 of 3 recordings left out"


@pytest.mark.parametrize("name", ["line\nbreak.wav", "$z^$.wav"])
def test_odd_names_are_printed_on_one_line_and_drawn(
    name: str, recordings: list[Path], smoke_run: Path, tmp_path: Path, script: Script
) -> None:
    recording = recordings[0].rename(tmp_path / name)
    done = script("transcribe", "--run", smoke_run, "--pictures", tmp_path / "pictures", recording)
    assert done.code == 0, done.stderr
    first = str(recording) if name.isprintable() else repr(str(recording))
    assert done.stdout.splitlines()[0] == first
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.stem == recording.stem


def test_pictures_of_files_of_one_name_are_refused(
    recordings: list[Path], smoke_run: Path, tmp_path: Path, script: Script
) -> None:
    same = tmp_path / "other" / recordings[0].name
    flags = ["--run", smoke_run, "--pictures", tmp_path / "pictures"]
    done = script("transcribe", *flags, recordings[0], same)
    assert done.code == 2 and "got 2 files named 'test-0'" in done.stderr
    assert not done.stdout and not (tmp_path / "pictures").exists()
