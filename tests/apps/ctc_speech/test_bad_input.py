"""A corpus with every fault: the first is named, or all are left out and counted."""

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


def test_stereo_and_eight_kilohertz_are_read(corpus: Path, tmp_path: Path, script: Script) -> None:
    stereo = np.stack([tone(440, 0.8)] * 2, axis=1)
    for place in range(3):
        soundfile.write(corpus / "train" / f"train-{place}.wav", stereo, 16_000)
        soundfile.write(corpus / "train" / f"train-{place + 3}.wav", tone(440, 0.8, 8_000), 8_000)
    done = script("train", *smoke_flags(corpus, tmp_path / "run"), "--steps", 2)
    assert done.code == 0, done.stderr
    refused = script("train", *smoke_flags(corpus, tmp_path / "no"), "--channels", "refuse")
    assert refused.code == 2 and "expected one channel, got 2" in refused.stderr
