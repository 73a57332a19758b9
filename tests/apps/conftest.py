"""The scripts of the application whose folder a test is in, and a finished run of it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.apps.app_scripts import Script, run


@pytest.fixture(scope="module")
def app(request: pytest.FixtureRequest) -> str:
    """The name of the application."""
    return request.path.relative_to(Path(__file__).parent).parts[0]


@pytest.fixture(scope="module")
def script(app: str) -> Script:
    """Runs a script to its end: script("train", "--preset", "smoke")."""
    return functools.partial(run, app)


@pytest.fixture(scope="session")
def train_smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trains the smoke preset of an application, once."""

    @functools.cache
    def train(app: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "smoke"
        done = run(app, "train", "--preset", "smoke", "--out", folder)
        assert done.code == 0, done.stderr
        return folder

    return train


@pytest.fixture
def smoke_run(app: str, train_smoke: Callable[[str], Path]) -> Path:
    """The folder of a finished run of the smoke preset, to read and not to change."""
    return train_smoke(app)
