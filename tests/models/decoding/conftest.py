"""Fixtures that run a test with every decoder."""

from __future__ import annotations

import pytest

from tests.models.decoding.decoders import KINDS, Kind
from tests.models.tiny import STEPPING


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every decoder."""
    return Kind(request.param)


@pytest.fixture(params=STEPPING)
def attention(request: pytest.FixtureRequest) -> str:
    """Each attention that can step."""
    name: str = request.param
    return name


@pytest.fixture(params=KINDS[1:], scope="module")
def compiled(request: pytest.FixtureRequest) -> Kind:
    """Every decoder with weights of its own."""
    return Kind(request.param)
