"""The application's scripts, a finished run, and a cache of downloads that is empty."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.apps.app_scripts import Script, command, run

APP = "pixel_generation"


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where downloads go; nobody's own cache is read or written."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "linattn"


@pytest.fixture(scope="session")
def script() -> Script:
    """Runs a script to its end: script("train", "--preset", "smoke")."""
    return partial(run, APP)


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the smoke preset on digits, to read and not to change."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    process = command(APP, "train", "--preset", "smoke", "--out", folder)
    subprocess.run(process, check=True, capture_output=True)
    return folder
