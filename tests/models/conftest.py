from __future__ import annotations

import pytest
import torch

from tests.models.tiny import ATTENTIONS


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(params=ATTENTIONS)
def attention(request: pytest.FixtureRequest) -> str:
    """Each attention: a test runs with all of them."""
    name: str = request.param
    return name
