from __future__ import annotations

import pytest

from tests.models.tiny import ATTENTIONS


@pytest.fixture(params=ATTENTIONS)
def attention(request: pytest.FixtureRequest) -> str:
    """Each attention: a test runs with all of them."""
    name: str = request.param
    return name
