"""The layer beside Reformer's: measured with the same weights, and only if its outputs agree."""

from __future__ import annotations

import pytest
import torch

from benchmarks.cases import lsh_layer as reformer
from benchmarks.cases.problem import Problem
from linattn_models.attention import LshMixer
from tests.benchmarks.helpers import QUICK

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
