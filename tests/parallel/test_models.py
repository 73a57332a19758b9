"""A model whose sequences are divided among ranks has the loss and gradients of the whole."""

from __future__ import annotations

import pytest

from .models_worker import check_everything
from .ranks import on_ranks


@pytest.mark.parametrize("ranks", [2, *(pytest.param(x, marks=pytest.mark.slow) for x in (3, 4))])
def test_shares_of_a_loss_are_the_loss(ranks: int) -> None:
    """Every kind of positions, decay, lengths, empty parts; a layer; updates by DDP and FSDP."""
    on_ranks(ranks, check_everything, ranks)
