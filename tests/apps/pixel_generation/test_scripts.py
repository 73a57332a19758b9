"""generate.py, compare.py and demo.py as their user runs them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from matplotlib.image import imread

from linattn_models.training import RunFolder
from tests.apps.app_scripts import PNG, Script, cells


def test_generate_draws_the_same_pictures_again(
    script: Script, smoke_run: Path, tmp_path: Path
) -> None:
    flags = ["--run", smoke_run, "--count", 9, "--completed", 3, "--copies", 2]
    done = script("generate", *flags, "--out", tmp_path / "a")
    assert done.code == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "completions.png",
        "figures.json",
        "samples.png",
    ]
    # Four images across (occluded, two completions, original) and three down, of 56 pixels.
    height, width = imread(tmp_path / "a" / "completions.png").shape[:2]
    assert width >= 4 * 56
    assert 3 * 56 < height < 5 * 56
    done = script("generate", *flags, "--out", tmp_path / "b")
    for name in ("completions.png", "samples.png"):  # the seed decides
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize(
    ("name", "value"), [("dataset", "digit"), ("attention", []), ("layout", None)]
)
def test_an_odd_value_of_a_run_is_named(
    script: Script, smoke_run: Path, tmp_path: Path, name: str, value: object
) -> None:
    odd = tmp_path / "odd"
    shutil.copytree(smoke_run, odd)
    path = odd / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    done = script("generate", "--run", odd, "--out", tmp_path / "out")
    assert done.code == 2 and str(path) in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_demo_may_be_repeated_and_published(script: Script, tmp_path: Path) -> None:
    flags = ["--steps", 5, "--batch", 2, "--positions", 2, "--out", tmp_path / "demo"]
    assert script("demo", *flags).code == 0
    done = script("demo", *flags, "--publish", tmp_path / "published")
    assert done.code == 0, done.stderr
    assert list(cells(done.stdout)) == ["linear", "stateful-softmax", "softmax"]
    published = {path.name for path in (tmp_path / "published").iterdir()}
    pictures = {f"{p}-{a}.png" for p in ("completions", "samples") for a in ("linear", "softmax")}
    pictures.add("speed.png")
    assert str(tmp_path / "demo" / "completions-linear.png") == done.stdout.split()[-1]
    assert published == {"table.md", "figures.json"}
    for attention in ("linear", "softmax"):
        assert RunFolder(tmp_path / "demo" / attention).summary()["steps"] == 5
    for name in pictures:
        assert (tmp_path / "demo" / name).read_bytes().startswith(PNG)


def test_demo_deletes_no_run_but_its_own(script: Script, smoke_run: Path, tmp_path: Path) -> None:
    shutil.copytree(smoke_run, tmp_path / "linear")
    done = script("demo", "--steps", 5, "--out", tmp_path)
    assert done.code == 2
    assert "already holds a run" in done.stderr
    assert (tmp_path / "linear" / "summary.json").exists()
