"""The oracle for a sample of rows agrees with the definitions that the packages are held to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import oracle
from linattn_core import reference


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 100])
def test_sampled_rows_hold_the_ends_and_no_row_twice(length: int) -> None:
    rows = oracle.sample_rows(length).tolist()
    assert rows == sorted(set(rows))
    assert {rows[0], rows[-1]} == {0, length - 1}


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize(
    ("rows_of", "whole"),
    [
        (oracle.linear_rows, reference.quadratic),
        (oracle.softmax_rows, F.scaled_dot_product_attention),
    ],
)
def test_rows_are_those_of_the_definition(rows_of: object, whole: object, is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(3, 2, 3, 40, 5, generator=generator, dtype=torch.float64)
    rows = oracle.sample_rows(40)
    wanted: Tensor = whole(*inputs, is_causal=is_causal)  # type: ignore[operator]
    ours = rows_of(*inputs, rows, is_causal)  # type: ignore[operator]
    torch.testing.assert_close(ours, wanted[:, :, rows])


def off(by: float, rows: int = 1) -> Tensor:
    """Ones (1000, 4), some rows of which are off."""
    ours = torch.ones(1_000, 4)
    ours[:rows, 0] += by
    return ours


@pytest.mark.parametrize(
    ("ours", "limits", "differs"),
    [
        (off(0.0), {}, False),
        (off(0.01), {}, True),
        (off(float("nan")), {}, True),
        (off(5e-3), {"tolerance": 1e-2}, False),  # a looser tolerance has to be given
        (off(9.0), {"stray": 1e-3}, False),
        (off(float("nan"), rows=2), {"stray": 1e-3}, True),
        (torch.ones(1, 1_000, 4), {}, True),
    ],
)
def test_a_tensor_that_differs_is_named(
    ours: Tensor, limits: dict[str, float], differs: bool
) -> None:
    sentence = oracle.find_disagreement("the output", ours, off(0.0).double(), **limits)
    assert ("the output" in str(sentence)) is differs


def test_gradients_that_are_missing_are_no_agreement() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    ours = oracle.output_and_gradients(lambda x: x.detach().sin(), [x])
    exact = oracle.output_and_gradients(torch.sin, [x.detach().double().requires_grad_()])
    assert oracle.find_first_disagreement(("query",), ours, exact) is not None
