"""A folder of pictures through every script: trained, resumed, drawn, completed, served."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread

from pixels.models import load_run
from pixels.pictures import HIDDEN
from tests.apps.app_scripts import APPS, PNG, Script
from tests.apps.pixel_generation.datasets.test_folder import fill

SETTINGS = ("--dataset", "folder", "--size", 8, "--color")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of pictures of 12 pixels each way."""
    return fill(tmp_path_factory.mktemp("own") / "pictures", 20)


@pytest.fixture(scope="module")
def own_run(script: Script, place: Path) -> Path:
    """The run of a model of them, to read and not to change."""
    out = place.parent / "run"
    done = script(
        "train", "--preset", "smoke", *SETTINGS, "--data-dir", place, "--steps", 4, "--out", out
    )
    assert done.code == 0, done.stderr
    assert "bits/dim on 2 test images" in done.stdout
    assert "reading" not in done.stderr  # a bar, which is for a terminal
    assert (out / "samples.png").read_bytes().startswith(PNG)
    return out


def test_a_run_resumes_with_the_same_pictures_alone(
    script: Script, own_run: Path, place: Path, tmp_path: Path
) -> None:
    flags = ("--preset", "smoke", *SETTINGS, "--steps", 4, "--out", own_run, "--resume")
    before = json.loads((own_run / "summary.json").read_text())["metrics"]
    done = script("train", *flags, "--data-dir", place)
    assert done.code == 0, done.stderr
    assert json.loads((own_run / "summary.json").read_text())["metrics"] == before
    other = script("train", *flags, "--data-dir", place, "--size", 9)
    assert other.code == 2 and "folder.size was 8 and is now 9" in other.stderr
    more = script("train", *flags, "--data-dir", fill(tmp_path / "more", 21))
    assert more.code == 2 and "data_digest" in more.stderr


def test_generate_reads_the_folder_as_the_training_did(
    script: Script, own_run: Path, place: Path, tmp_path: Path
) -> None:
    done = script("generate", "--run", own_run, "--count", 4, "--out", tmp_path / "samples")
    assert done.code == 0, done.stderr
    assert not (tmp_path / "samples" / "completions.png").exists()
    flags = ("--run", own_run, "--count", 0, "--completed", 2, "--copies", 1, "--out", tmp_path)
    assert "--data-dir" in script("generate", *flags).stderr
    done = script("generate", *flags, "--data-dir", place)
    assert done.code == 0, done.stderr
    canvas = (imread(tmp_path / "completions.png")[..., :3] * 255).round()
    assert (canvas == HIDDEN).all(axis=-1).sum() == 2 * 56 * 28  # of two pictures the lower halves


@pytest.mark.parametrize("odd", [None, {"sizes": 8}])
def test_an_odd_record_of_the_folder_is_named(own_run: Path, tmp_path: Path, odd: Any) -> None:
    shutil.copytree(own_run, tmp_path / "odd")
    path = tmp_path / "odd" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "folder": odd}))
    with pytest.raises((TypeError, ValueError), match=r"folder in .*config\.json"):
        load_run(tmp_path / "odd")


def test_the_page_shows_them(own_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    testclient = pytest.importorskip("fastapi.testclient")
    monkeypatch.syspath_prepend(str(APPS / "pixel_generation"))
    monkeypatch.delitem(sys.modules, "serve", raising=False)
    from serve import make_app

    with testclient.TestClient(make_app(load_run(own_run), 4)) as client:
        about: dict[str, Any] = client.get("/image").json()
    assert (about["height"], about["width"], about["channels"], about["levels"]) == (8, 8, 3, 256)
