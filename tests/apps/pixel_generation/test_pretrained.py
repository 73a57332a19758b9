"""The pretrained model of MNIST: it is as good as its record says, draws and completes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from linattn_models import load, read_config
from pixels import datasets
from pixels.evaluation import bits_per_dim
from pixels.models import PRETRAINED
from tests.apps.app_scripts import PNG, Script

LARGEST = 1_500_000  # bytes, of a clone


def test_it_is_small_and_says_how_it_was_trained() -> None:
    assert sum(file.stat().st_size for file in PRETRAINED.iterdir()) < LARGEST
    config = read_config(PRETRAINED)
    assert config["weights"] == "int8"
    assert config["extra"]["environment"]["commit"]


def test_test_images_cost_the_bits_of_its_record(shared_data: Callable[[str], Path]) -> None:
    promised = read_config(PRETRAINED)["extra"]["metrics"]["bits_per_dim"]
    images = datasets.load("mnist", shared_data("mnist")).test[:32]
    assert bits_per_dim(load(PRETRAINED), images, "sub-pixels") == pytest.approx(promised, abs=0.1)


def test_generate_draws_and_completes_with_it(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = script("generate", "--count", 2, "--completed", 1, "--copies", 1)
    assert done.code == 0, done.stderr
    pictures = [Path(line) for line in done.stdout.splitlines()]
    assert [path.name for path in pictures] == ["samples.png", "completions.png"]
    for path in pictures:
        assert path.is_relative_to("runs") and path.read_bytes().startswith(PNG)
