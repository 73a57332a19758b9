"""The oracle for a sample of rows agrees with the definitions that the packages are held to."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from benchmarks import oracle
from linattn_core import reference


def _inputs(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (2, 3, length, 5)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 100])
def test_sampled_rows_hold_the_ends_and_no_row_twice(length: int) -> None:
    rows = oracle.sample_rows(length).tolist()
    assert rows == sorted(set(rows))
    assert {rows[0], rows[-1]} == {0, length - 1}


@pytest.mark.parametrize("is_causal", [True, False])
def test_linear_rows_are_rows_of_the_quadratic_definition(is_causal: bool) -> None:
    query, key, value = _inputs(40)
    rows = oracle.sample_rows(40)
    whole = reference.quadratic(query, key, value, is_causal=is_causal, feature_map="elu")
    assert isinstance(whole, torch.Tensor)
    ours = oracle.linear_rows(query, key, value, rows, is_causal)
    torch.testing.assert_close(ours, whole[:, :, rows])


@pytest.mark.parametrize("is_causal", [True, False])
def test_softmax_rows_are_rows_of_torchs_attention(is_causal: bool) -> None:
    query, key, value = _inputs(40)
    rows = oracle.sample_rows(40)
    whole = F.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    ours = oracle.softmax_rows(query, key, value, rows, is_causal)
    torch.testing.assert_close(ours, whole[:, :, rows])


@pytest.mark.parametrize("wrong", [1.01, float("nan")])
def test_a_wrong_tensor_is_named(wrong: float) -> None:
    exact = torch.ones(4, dtype=torch.float64)
    sentence = oracle.disagreement("the output", torch.tensor([1.0, 1.0, 1.0, wrong]), exact)
    assert sentence is not None
    assert "of the rows of the output differ" in sentence


def test_a_looser_tolerance_has_to_be_given() -> None:
    exact = torch.ones(4, dtype=torch.float64)
    near = (exact + 5e-3).float()
    assert oracle.disagreement("the output", near, exact) is not None
    assert oracle.disagreement("the output", near, exact, 1e-2) is None


@pytest.mark.parametrize(("wrong", "found"), [(0, False), (1, False), (2, True)])
def test_one_row_in_a_thousand_may_stray(wrong: int, found: bool) -> None:
    exact = torch.rand(1_000, 4, dtype=torch.float64) + 1
    ours = exact.float()
    ours[:wrong, 0] = torch.tensor([float("nan"), 9.0])[:wrong]
    sentence = oracle.disagreement("the output", ours, exact, stray=1e-3)
    assert (sentence is not None) == found


def test_another_shape_is_no_agreement() -> None:
    assert oracle.disagreement("x", torch.ones(1, 2, 3), torch.ones(4, 2, 3).double()) is not None


def test_gradients_that_are_missing_are_no_agreement() -> None:
    x = torch.ones(2, 3, requires_grad=True)
    ours = oracle.output_and_gradients(lambda x: x.detach().sin(), [x])
    exact = oracle.output_and_gradients(torch.sin, [x.detach().double().requires_grad_()])
    assert oracle.first_disagreement(("query",), ours, exact) is not None
