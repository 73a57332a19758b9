"""The layer beside Reformer's: measured with the same weights, and only if its outputs agree."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import lsh_layer as reformer
from benchmarks.cases.problem import Problem
from linattn_models.attention import LshMixer
from tests.benchmarks.helpers import QUICK

SMALL = Problem(64, heads=2, width=8)
LONG = Problem(4_096, heads=2, width=8)  # the first chunk is few of its rows


def test_our_layer_runs_and_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    reformer.setup(QUICK)[reformer.OURS]().run()
    ours, x = reformer.our_layer(LONG), reformer.inputs(LONG)
    assert reformer.fault(ours, x) is None

    def lossy(self: LshMixer, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = forward(self, x)
        return out if x.dtype == torch.float64 else out.mul(1.1)

    forward = LshMixer.forward
    monkeypatch.setattr(LshMixer, "forward", lossy)
    assert "of the rows of the output differ" in str(reformer.fault(ours, x))


@pytest.mark.parametrize(("problem", "off"), [(SMALL, 0.0), (LONG, 1.0)])
def test_a_layer_agrees_that_draws_the_same_rotations_and_no_other(
    problem: Problem, off: float
) -> None:
    ours = reformer.our_layer(problem)

    def peer(x: torch.Tensor) -> torch.Tensor:
        """Ours, hashed by what the peer would draw first."""
        drawn = torch.randn(problem.heads, problem.width, 1, reformer.BUCKETS // 2)
        ours.rotations.copy_(drawn.permute(2, 0, 1, 3))
        out: torch.Tensor = ours.eval()(x)
        return out + off

    said = reformer.difference(ours, peer, reformer.inputs(problem))
    assert ("100.0% of the rows differ" in str(said)) if off else said is None
