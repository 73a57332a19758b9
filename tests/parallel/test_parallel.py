"""Ranks that each have a part make together what one process makes."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import context_worker, models_worker, tensor_worker, training_worker
from .ranks import on_ranks


# One start of the processes for all checks, because a start takes seconds.
@pytest.mark.parametrize(
    ("ranks", "seeds"),
    [
        (2, range(12)),
        pytest.param(3, range(12, 20), marks=pytest.mark.slow),
        pytest.param(4, range(20, 26), marks=pytest.mark.slow),
    ],
    ids=["2 ranks", "3 ranks", "4 ranks"],
)
def test_parts_together_are_the_whole(ranks: int, seeds: range, tmp_path: Path) -> None:
    """The operator, models, and runs of `train`, of which one process continues what ranks made."""
    trains = ranks != 3  # which share no batch of 8
    if trains:
        training_worker.make_runs_of_one(tmp_path)
    on_ranks(ranks, check_everything, ranks, seeds, tmp_path, trains)
    if trains:
        training_worker.check_end_of_chain(tmp_path)


def check_everything(rank: int, ranks: int, seeds: range, folder: Path, trains: bool) -> None:
    """What each rank does."""
    context_worker.check_operator(rank, ranks, seeds)
    models_worker.check_parts(rank, ranks)
    tensor_worker.check_tensor_parallel(ranks, folder / "divided")
    if trains:
        training_worker.check_training(rank, ranks, folder)
