"""A corpus or recordings with every fault: the first is named, or all are left out and counted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

from speech.corpora import CorpusFlags
from speech.presets import smoke
from speech.training import load_speech
from tests.apps.app_scripts import Script
from tests.apps.ctc_speech.conftest import smoke_flags, tone, write_data_folder

UNREADABLE = "audio that cannot be read"


def _write(samples: np.ndarray) -> Callable[[Path], object]:
    return lambda path: soundfile.write(path, samples, 16_000, subtype="FLOAT")


# What becomes of a recording, and what it is counted as.
FAULTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "gone": (Path.unlink, UNREADABLE),
    "corrupt": (lambda path: path.write_bytes(path.read_bytes()[:30]), UNREADABLE),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:9_000]), UNREADABLE),
    "nan": (_write(np.full(16_000, np.nan, np.float32)), UNREADABLE),
    "dense": (_write(tone(440, 0.06)), "more labels than frames"),
    "endless": (_write(np.tile(tone(440, 10), 100)), "more than 2400 frames"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A corpus of bursts of tones, to be damaged."""
    folder = tmp_path / "corpus"
    write_data_folder(folder / "train", speakers=3, each=6, seed=0)
    write_data_folder(folder / "dev", speakers=1, each=2, seed=2)
    write_data_folder(folder / "test", speakers=1, each=2, seed=1)
    return folder


@pytest.mark.parametrize("fault", FAULTS)
def test_the_first_fault_is_named(fault: str, folder: Path, tmp_path: Path) -> None:
    FAULTS[fault][0](folder / "train" / "train-7.wav")
    corpus = CorpusFlags(data_dir=folder).read("kaldi")
    with pytest.raises((ValueError, OSError), match="train-7"):
        load_speech(corpus, "train", smoke("linear"), tmp_path / "cache")


@pytest.mark.slow
def test_all_faults_are_left_out_and_counted(folder: Path, tmp_path: Path, script: Script) -> None:
    for place, (damage, _) in enumerate(FAULTS.values()):
        damage(folder / "train" / f"train-{place}.wav")
    done = script("train", *smoke_flags(folder, tmp_path / "run"), "--bad-input", "skip")
    assert done.code == 0, done.stderr
    reasons = [reason for _, reason in FAULTS.values()]
    for reason in reasons:
        line = f"kaldi, train: {reasons.count(reason)} utterances left out: {reason}\n"
        assert line in done.stdout
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines if "loss" in line]
    assert losses and np.isfinite(losses).all()


@pytest.mark.parametrize("split", ["dev", "test"])
def test_a_fault_of_held_out_speech_ends_a_run_before_its_training(
    split: str, folder: Path, tmp_path: Path, script: Script
) -> None:
    text = folder / split / "text"
    text.write_text("\n".join(line.split()[0] for line in text.read_text().splitlines()))
    done = script("train", *smoke_flags(folder, tmp_path / "run"))
    assert done.code == 2 and f"kaldi, {split}: expected" in done.stderr
    (folder / split / f"{split}-0.wav").unlink()
    done = script("train", *smoke_flags(folder, tmp_path / "run"))
    assert done.code == 2 and f"{split}-0.wav: expected" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.fixture
def recordings(tones: Path, tmp_path: Path) -> list[Path]:
    """Three recordings, to be damaged."""
    return [Path(shutil.copy(tones / "test" / f"test-{n}.wav", tmp_path)) for n in range(3)]


@pytest.mark.parametrize("fault", ["gone", "cut", "nan"])
def test_a_bad_recording_is_named_and_the_others_are_printed(
    fault: str, recordings: list[Path], smoke_run: Path, script: Script
) -> None:
    FAULTS[fault][0](recordings[1])
    flags = ["--run", smoke_run, "--json", *recordings]
    refused = script("transcribe", *flags)
    assert refused.code == 2 and refused.stderr.count("\n") == 1
    assert [item["file"] for item in json.loads(refused.stdout)] == [str(recordings[0])]
    skipped = script("transcribe", *flags, "--bad-input", "skip")
    assert skipped.code == 0, skipped.stderr
    others = [str(recordings[0]), str(recordings[2])]
    assert [item["file"] for item in json.loads(skipped.stdout)] == others
    sentence, count = skipped.stderr.splitlines()
    assert str(recordings[1]) in sentence and count == "1 of 3 recordings left out"


def test_an_odd_name_is_printed_on_one_line_and_drawn(
    recordings: list[Path], smoke_run: Path, tmp_path: Path, script: Script
) -> None:
    recording = recordings[0].rename(tmp_path / "$z^$\n.wav")
    done = script("transcribe", "--run", smoke_run, "--pictures", tmp_path / "pictures", recording)
    assert done.code == 0, done.stderr
    assert done.stdout.splitlines()[0] == repr(str(recording))
    (picture,) = (tmp_path / "pictures").iterdir()
    assert picture.stem == recording.stem


def test_pictures_that_cannot_be_written_are_refused_before_the_work(
    recordings: list[Path], smoke_run: Path, tmp_path: Path, script: Script
) -> None:
    same = tmp_path / "other" / recordings[0].name
    flags = ["--run", smoke_run, "--pictures", tmp_path / "pictures"]
    done = script("transcribe", *flags, recordings[0], same)
    assert done.code == 2 and "--pictures" in done.stderr
    assert not done.stdout and not (tmp_path / "pictures").exists()
    flags = ["--run", smoke_run, "--pictures", recordings[1]]  # a file is in the way
    done = script("transcribe", *flags, recordings[0])
    assert done.code == 2 and str(recordings[1]) in done.stderr and not done.stdout
