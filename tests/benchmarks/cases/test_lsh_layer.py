"""The layer beside Reformer's: measured with the same weights, and only if its outputs agree."""

from __future__ import annotations

import pytest
import torch

from benchmarks.case import Settings
from benchmarks.cases import lsh_layer as reformer
from benchmarks.cases.problem import Problem
from linattn_lab.timing import NotMeasured
from linattn_models.attention import LshMixer

SMALL = Problem(64, heads=2, width=8)
LONG = Problem(4_096, heads=2, width=8)  # the first chunk is few of its rows


def test_without_peers_ours_runs_and_the_peer_says_why_not() -> None:
    ours, peer = reformer.setup(Settings(quick=True)).values()
    with pytest.raises(NotMeasured, match="--peers"):
        peer()
    ours().run()


def test_our_layer_is_checked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, x = reformer.our_layer(LONG), reformer.inputs(LONG)
    assert reformer.fault(ours, x) is None

    def lossy(self: LshMixer, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = forward(self, x)
        return out if x.dtype == torch.float64 else out.mul(1.1)

    forward = LshMixer.forward
    monkeypatch.setattr(LshMixer, "forward", lossy)
    assert "of the rows of the output differ" in str(reformer.fault(ours, x))


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
