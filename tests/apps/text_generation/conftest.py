"""The application's scripts, and a run of theirs."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.apps.app_scripts import Script, command, run

APP = "text_generation"


@pytest.fixture(scope="session")
def script() -> Script:
    """Runs a script to its end: script("train", "--preset", "smoke")."""
    return partial(run, APP)


@pytest.fixture(scope="session")
def smoke_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the smoke preset, to read and not to change."""
    folder = tmp_path_factory.mktemp("runs") / "smoke"
    process = command(APP, "train", "--preset", "smoke", "--out", folder)
    subprocess.run(process, check=True, capture_output=True)
    return folder
