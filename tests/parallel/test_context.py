"""Attention over a sequence of which every rank holds a part is that of one process."""

from __future__ import annotations

import pytest

from .context_worker import check_everything
from .ranks import on_ranks


@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [
        (2, range(12)),
        pytest.param(3, range(12, 20), marks=pytest.mark.slow),
        pytest.param(4, range(20, 26), marks=pytest.mark.slow),
    ],
    ids=["2 ranks", "3 ranks", "4 ranks"],
)
def test_parts_together_are_the_whole(ranks: int, seeds: range) -> None:
    """Any split, packed or padded, masks, decay and states; compiled; wrong calls; other losses."""
    on_ranks(ranks, check_everything, ranks, seeds)
