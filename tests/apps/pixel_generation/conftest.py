"""The application's scripts are no package: their folder goes on the path, as it does when run."""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # the helpers of these tests
sys.path.insert(0, str(Path(__file__).parents[3] / "apps" / "pixel_generation"))

from app_scripts import Script, command, run

APP = "pixel_generation"


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
