"""What all tests of the folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look at a hub that tests do not need."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(params=["gpt2", "llama", "bert"])
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name
