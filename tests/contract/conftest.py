"""The contract: one suite for every live backend.

`pytest tests/contract` runs it over all backends that are installed and live; `--backend NAME`
(repeatable) over those named, for whoever writes a backend elsewhere.
"""

from __future__ import annotations

import pytest

from linattn_core import backends


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        names = metafunc.config.getoption("--backend") or backends()
        metafunc.parametrize("backend", names)
