"""The application's scripts."""

from __future__ import annotations

from functools import partial

import pytest

from tests.apps.app_scripts import Script, run


@pytest.fixture
def script() -> Script:
    """Runs a script to its end: script("characters", "--steps", 4)."""
    return partial(run, "conversion")
