"""The layer beside Reformer's: measured with the same weights, and only if its outputs agree."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import lsh_layer as reformer
from benchmarks.cases.problem import Problem
from benchmarks.measure.cases import NotMeasured, Settings

SMALL = Problem(64, heads=2, width=8)
LONG = Problem(4_096, heads=2, width=8)  # the first chunk is few of its rows


def test_without_peers_ours_runs_and_the_peer_says_why_not() -> None:
    ours, peer = reformer.setup(Settings(quick=True)).values()
    with pytest.raises(NotMeasured, match="--peers"):
        peer()
    ours().run()


def test_a_layer_that_draws_the_same_rotations_agrees() -> None:
    ours = reformer.our_layer(SMALL)

    def peer(x: torch.Tensor) -> torch.Tensor:
        """Ours, hashed by what the peer would draw first."""
        drawn = torch.randn(SMALL.heads, SMALL.width, 1, reformer.BUCKETS // 2)
        ours.rotations.copy_(drawn.permute(2, 0, 1, 3))
        out: torch.Tensor = ours.eval()(x)
        return out

    assert reformer.difference(ours, peer, reformer.inputs(SMALL)) is None


def test_another_layer_is_told_apart() -> None:
    ours = reformer.our_layer(LONG)
    said = reformer.difference(ours, lambda x: ours.eval()(x) + 1, reformer.inputs(LONG))
    assert said is not None and "100.0% of the rows differ" in said
