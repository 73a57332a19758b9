"""The application's scripts, and small recordings."""

from __future__ import annotations

import dataclasses
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from speech.models import TrainedRun, build_model
from speech.presets import smoke
from speech.running import Prior
from tests.apps.app_scripts import Script, run

APP = "ctc_speech"
PRIOR = Prior((10.0,) * 40, (9.0,) * 40)
TONES = {"LOW": 300.0, "MID": 900.0, "HIGH": 2_500.0}


@pytest.fixture(scope="session")
def script() -> Script:
    """Runs a script to its end: script("train", "--preset", "smoke")."""
    return partial(run, APP)


def tone(hertz: float, seconds: float, rate: int = 16_000) -> np.ndarray:
    """A sine burst, (samples,) float32."""
    time = np.arange(round(seconds * rate)) / rate
    return (0.3 * np.sin(2 * np.pi * hertz * time)).astype(np.float32)


def write_data_folder(folder: Path, speakers: int, each: int, seed: int) -> None:
    """A Kaldi data folder whose text is phones, a burst of its own tone for each."""
    folder.mkdir(parents=True)
    draws = np.random.default_rng(seed)
    lines: dict[str, list[str]] = {"wav.scp": [], "text": [], "utt2spk": []}
    for index in range(speakers * each):
        phones = draws.choice(list(TONES), 3)
        pause = np.zeros(1_600, np.float32)
        samples = np.concatenate([x for p in phones for x in (tone(TONES[p], 0.15), pause)])
        name = f"{folder.name}-{index}"
        soundfile.write(folder / f"{name}.wav", samples, 16_000)
        lines["wav.scp"].append(f"{name} {folder / name}.wav")
        lines["text"].append(f"{name} {' '.join(phones)}")
        lines["utt2spk"].append(f"{name} {folder.name}-speaker-{index % speakers}")
    for file, content in lines.items():
        (folder / file).write_text("\n".join(content) + "\n")


def other_text(tones: Path, corpus: Path, split: str = "train") -> Path:
    """A copy of the corpus with the transcripts of `split` in another order."""
    shutil.copytree(tones, corpus)
    lines = [line.split(" ", 1) for line in (corpus / split / "text").read_text().splitlines()]
    names, said = zip(*lines, strict=True)
    swapped = (" ".join(line) for line in zip(names, said[::-1], strict=True))
    (corpus / split / "text").write_text("\n".join(swapped))
    return corpus


@pytest.fixture(scope="session")
def tones(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of bursts in Kaldi's layout, to read and not to change."""
    folder = tmp_path_factory.mktemp("tones")
    write_data_folder(folder / "train", speakers=3, each=4, seed=0)
    write_data_folder(folder / "test", speakers=1, each=3, seed=1)
    return folder


@pytest.fixture(scope="session")
def smoke_run(tones: Path, tmp_path_factory: pytest.TempPathFactory, script: Script) -> Path:
    """The folder of a finished run of the smoke preset on the bursts, to read."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    done = script("train", *smoke_flags(tones, folder))
    assert done.code == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def streaming_run() -> TrainedRun:
    """A run with random weights that answers with many phones, of which it is sure."""
    torch.manual_seed(0)
    recipe = dataclasses.replace(smoke("linear"), chunk=4, normalize="running")
    model = build_model(recipe, 5).eval()
    with torch.no_grad():
        model.output.weight.mul_(60)
    described = {
        "units": "phones",
        "inventory": list("ABCDE"),
        "normalize": "running",
    }
    prior = dataclasses.asdict(PRIOR)
    config = {**described, "prior": prior, "subsampling": 4, "corpus": "x", "attention": "linear"}
    return TrainedRun(model, config, 0)


def smoke_flags(tones: Path, out: Path) -> list[object]:
    """What trains in seconds on the bursts, with the cache beside `out`."""
    flags: list[object] = ["--preset", "smoke", "--corpus", "kaldi", "--data-dir", tones]
    return [*flags, "--cache", out.parent / "cache", "--out", out]
