"""train.py as its user runs it: what it leaves and how it resumes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pixels.datasets import load
from pixels.presets import smoke
from pixels.training import train_model
from tests.apps.app_scripts import PNG, Script, command, kill_when_there
from tests.training.toy import logged


@pytest.mark.parametrize("attention", ["softmax", "lsh-4"])
def test_every_attention_trains_and_draws(script: Script, tmp_path: Path, attention: str) -> None:
    out = tmp_path / "run"
    flags = ["--preset", "smoke", "--attention", attention, "--steps", 10]
    done = script("train", *flags, "--out", out)
    assert done.code == 0, done.stderr
    assert json.loads((out / "summary.json").read_text())["attention"] == attention
    assert json.loads((out / "config.json").read_text())["attention"] == attention
    assert (out / "samples.png").read_bytes().startswith(PNG)
    assert "step/s" not in done.stderr  # a bar, which is for a terminal
    done = script("generate", "--run", out, "--count", 4, "--completed", 2, "--copies", 2)
    assert done.code == 0, done.stderr
    assert (out / "completions.png").read_bytes().startswith(PNG)
    assert done.stderr == ""


def test_killed_and_resumed_equals_unbroken(script: Script, tmp_path: Path) -> None:
    flags = ["--preset", "smoke", "--steps", "30", "--dropout", "0.2", "--checkpoint-every", "5"]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert script("train", *flags, "--out", unbroken).code == 0
    process = command("pixel_generation", "train", *flags, "--out", broken)
    kill_when_there(process, broken / "checkpoints" / "step-10")
    assert not (broken / "summary.json").exists()
    resumed = script("train", *flags, "--out", broken, "--resume")
    assert resumed.code == 0, resumed.stderr
    assert logged(broken) == logged(unbroken)
    weights = Path("checkpoints", "step-30", "model.safetensors")
    assert (broken / weights).read_bytes() == (unbroken / weights).read_bytes()
    summaries = [json.loads((run / "summary.json").read_text()) for run in (unbroken, broken)]
    assert summaries[0]["metrics"] == summaries[1]["metrics"]
    again = script("train", *flags, "--out", broken, "--resume")  # of a run that has ended
    assert again.code == 0, again.stderr
    assert json.loads((broken / "summary.json").read_text())["metrics"] == summaries[0]["metrics"]


@pytest.mark.parametrize("dataset", ["mnist", "cifar10"])
def test_real_images_are_learned_and_drawn(
    script: Script, shared_data: Callable[[str], Path], tmp_path: Path, dataset: str
) -> None:
    out = tmp_path / "run"
    where = ["--data-dir", shared_data(dataset)]
    flags = ["--preset", "smoke", "--dataset", dataset, "--steps", 3]
    done = script("train", *flags, *where, "--out", out)
    assert done.code == 0, done.stderr
    assert "bits/dim on 8 test images" in done.stdout
    done = script("generate", "--run", out, "--count", 2, "--out", tmp_path / "samples")
    assert done.code == 0, done.stderr  # without the dataset
    left = sorted(path.name for path in (tmp_path / "samples").iterdir())
    assert left == ["figures.json", "samples.png"]
    done = script("generate", "--run", out, "--completed", 2, "--out", tmp_path / "pictures")
    assert done.code == 2
    assert "--download" in done.stderr
    assert not (tmp_path / "pictures").exists()
    few = ["--count", 2, "--completed", 2, "--copies", 1]
    done = script("generate", "--run", out, *where, *few, "--out", tmp_path / "pictures")
    assert done.code == 0, done.stderr
    assert (tmp_path / "pictures" / "completions.png").read_bytes().startswith(PNG)


def test_a_run_is_not_resumed_on_other_images(tmp_path: Path) -> None:
    images, recipe = load("digits"), smoke("digits")
    recipe = replace(recipe, training=replace(recipe.training, steps=2))
    train_model(images, recipe, tmp_path / "run")
    train_model(images, recipe, tmp_path / "run", resume=True)
    for part in ("train", "validation", "test"):
        other = replace(images, **{part: getattr(images, part)[::-1]})  # of the same shapes
        with pytest.raises(ValueError, match="data_digest"):
            train_model(other, recipe, tmp_path / "run", resume=True)
