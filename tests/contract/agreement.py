"""How much two results may differ: from the oracle by the budgets, from one another by rounding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from .budgets import budget, error, roundings
from .cases import Case, by_definition, on_backend


def assert_within_budget(case: Case, backend: str) -> None:
    """Output, state and gradients are as exact as the table of budgets asks."""
    tensors = case.inputs()
    oracle = by_definition(case, tensors, torch.float64)
    own = by_definition(case, tensors, case.dtype)
    for name, got in on_backend(case, backend, tensors).items():
        expected = oracle[name]
        assert got.shape == expected.shape, name
        assert torch.isfinite(got).all(), name
        allowed = budget(backend, name, error(own[name], expected), expected, case.dtype)
        assert error(got, expected) <= allowed, f"{name}: {error(got, expected)} > {allowed}"


def assert_agree(got: Tensor, expected: Tensor, name: str = "", size: Tensor | float = 1.0) -> None:
    """Equal up to rounding: two ways to the same number, each with an error of its own.

    A float32 sum of n terms, in any order, is off by at most n eps / 2 of the sum of its absolute
    terms. Two ways to it may differ by twice the floor of the budgets, 32 eps, which is this bound
    for 32 terms, and well above what rounding makes of the few hundred of the longest calls. TF32
    rounds to 4,096 eps and bfloat16 to 32,768. The other dtypes may differ by the tolerances of
    `assert_close`.

    Args:
        got, expected: results of two ways.
        name: of the result, for the message.
        size: the sum of absolute terms of each number, where it may be larger than 1 and than the
            largest number.
    """
    if got.dtype != torch.float32:
        assert_close(got, expected, msg=lambda m: f"{name}: {m}")
        return
    assert got.shape == expected.shape, name
    if not expected.numel():
        return
    size = torch.as_tensor(size).clamp(min=max(1.0, expected.abs().max().item()))
    share = (got.double() - expected).abs() / (2 * roundings(got.dtype) * size)
    assert (share <= 1).all(), f"{name}: {share.max()} times the difference of two ways"
