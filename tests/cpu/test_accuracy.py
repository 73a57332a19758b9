"""Over long sequences the error is at most that of plain torch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .calls import draw, run


def error(x: Tensor, exact: Tensor) -> float:
    """The largest difference, as a share of the largest number."""
    return ((x.double() - exact).abs().max() / exact.abs().max()).item()


def spread(x: Tensor, exact: Tensor) -> float:
    """The root of the mean squared difference."""
    return (x.double() - exact).square().mean().sqrt().item()


@pytest.mark.parametrize("is_causal", [True, False])
def test_no_larger_than_the_references_own(is_causal: bool, instruction_set: str) -> None:
    """On the whole. Single errors stay within the contract's budget: the first gradients cancel,
    and chance decides whose terms round alike."""
    tensors = draw(1, 2, 8_000, 32)
    exact = run([x.double() for x in tensors], "reference", is_causal=is_causal)
    reference = run(tensors, "reference", is_causal=is_causal)
    ours = run(tensors, is_causal=is_causal)

    slack = 16 * torch.finfo(torch.float32).eps
    for name, x in exact.items():
        assert spread(ours[name], x) <= 1.1 * spread(reference[name], x), name
        assert error(ours[name], x) <= 2 * error(reference[name], x) + slack, name


def test_the_state_does_not_drift(instruction_set: str) -> None:
    """The error of the sums is that of one rounding at every length."""
    tensors = draw(1, 1, 60_000, 8)
    exact = run([x.double() for x in tensors], "reference", is_causal=True)
    ours = run(tensors, is_causal=True)

    for name in ("s", "z"):
        assert error(ours[name], exact[name]) < 4 * torch.finfo(torch.float32).eps, name
