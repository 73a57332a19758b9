"""Each map's inner product is the kernel that it says it is."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from linattn_core import FeatureMap, feature_map_names, get_feature_map, linear_attention
from linattn_core.feature_maps import Elementwise


def similarity(mapping: FeatureMap, q: Tensor, k: Tensor) -> Tensor:
    return mapping.queries(q) @ mapping.keys(k).mT


def inputs(dim: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    return tuple(scale * torch.randn(2, 3, 7, dim, dtype=torch.float64) for _ in range(2))


@pytest.mark.parametrize("name", feature_map_names())
@given(dim=st.integers(1, 12))
def test_feature_dim_is_that_of_the_features(name: str, dim: int) -> None:
    mapping = get_feature_map(name, dim)
    x = torch.randn(2, 3, 5, dim)
    for features in (mapping.queries(x), mapping.keys(x)):
        assert features.shape == (2, 3, 5, mapping.feature_dim(dim))


@pytest.mark.parametrize("name", feature_map_names())
def test_positions_are_mapped_alone(name: str) -> None:
    mapping = get_feature_map(name, 4)
    x = torch.randn(2, 3, 5, 4)
    for side in (mapping.queries, mapping.keys):
        assert_close(side(x)[:, :, 2:3], side(x[:, :, 2:3]))


@pytest.mark.parametrize("name", ["elu", "polynomial", "taylor", "favor", "hedgehog", "relu"])
def test_similarities_are_never_negative(name: str) -> None:
    q, k = inputs(6, scale=3.0)
    assert (similarity(get_feature_map(name, 6), q, k) >= -1e-12).all()


def test_elu_is_the_papers_equation_7() -> None:
    x = torch.linspace(-30, 30, 601, dtype=torch.float64)
    expected = torch.where(x < 0, x.exp(), x + 1)
    assert_close(get_feature_map("elu", 1).queries(x), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_elu_keeps_small_numbers_in_half_precision(dtype: torch.dtype) -> None:
    x = torch.tensor([-12.0], dtype=dtype)
    assert_close(get_feature_map("elu", 1).queries(x), x.double().exp().to(dtype))


@pytest.mark.parametrize("name", ["elu", "relu", "identity"])
def test_derivative_at_zero(name: str) -> None:
    x = torch.zeros(1, requires_grad=True)
    get_feature_map(name, 1).queries(x).backward()
    assert x.grad.item() == (0.0 if name == "relu" else 1.0)


def test_polynomial_is_exact() -> None:
    q, k = inputs(5)
    assert_close(similarity(get_feature_map("polynomial", 5), q, k), (q @ k.mT).square())


def test_taylor_is_the_exponential_to_second_order() -> None:
    q, k = inputs(5)
    s = q @ k.mT / math.sqrt(5)
    assert_close(similarity(get_feature_map("taylor", 5), q, k), 1 + s + s.square() / 2)


def favor_ratio(mapping: FeatureMap, q: Tensor, k: Tensor) -> Tensor:
    weights = similarity(mapping, q, k)
    return weights / weights.sum(-1, keepdim=True)


def test_favor_approaches_softmax() -> None:
    q, k = inputs(8, scale=0.5)  # the variance grows as the exponential of the norms
    exact = (q @ k.mT / math.sqrt(8)).softmax(-1)
    errors = []
    for count in (32, 8192):
        mapping = get_feature_map(
            "favor", 8, num_features=count, generator=torch.Generator().manual_seed(0)
        )
        errors.append((favor_ratio(mapping, q, k) - exact).abs().mean().item())
    assert errors[1] < errors[0] / 5  # the rate is 1 / sqrt(256) = 1 / 16


def test_favor_is_finite_for_large_inputs() -> None:
    q, k = inputs(64, scale=20.0)
    mapping = get_feature_map("favor", 64)
    assert torch.isfinite(similarity(mapping, q.float(), k.float())).all()


def test_rff_approaches_the_gaussian_kernel() -> None:
    q, k = inputs(4)
    exact = torch.exp(-torch.cdist(q, k).square() / (2 * 1.5**2))
    mapping = get_feature_map(
        "rff", 4, num_features=20_000, lengthscale=1.5, generator=torch.Generator().manual_seed(0)
    )
    assert_close(similarity(mapping, q, k), exact, rtol=0, atol=0.05)


@pytest.mark.parametrize("name", ["favor", "rff"])
def test_random_maps_redraw_only_when_told(name: str) -> None:
    mapping = get_feature_map(name, 4, generator=torch.Generator().manual_seed(3))
    same = get_feature_map(name, 4, generator=torch.Generator().manual_seed(3))
    x = torch.randn(1, 1, 5, 4)
    first = mapping.queries(x)
    assert torch.equal(first, mapping.queries(x))
    assert torch.equal(first, same.queries(x))
    mapping.redraw(torch.Generator().manual_seed(4))
    assert not torch.allclose(first, mapping.queries(x))
    same.load_state_dict(mapping.state_dict())
    assert torch.equal(mapping.queries(x), same.queries(x))


@pytest.mark.parametrize("name", ["favor", "rff"])
def test_random_maps_are_drawn_on_the_cpu_whatever_the_default_device_is(name: str) -> None:
    here, there = get_feature_map(name, 4), get_feature_map(name, 4)
    generator = torch.Generator()
    torch.manual_seed(5)
    here.redraw()
    following = torch.randn(3)
    torch.manual_seed(5)
    with torch.device("meta"):
        assert get_feature_map(name, 4, generator=generator).projection.is_meta
        there.redraw()
    assert torch.equal(here.projection, there.projection)
    assert torch.equal(following, torch.randn(3))


def test_random_directions_are_orthogonal_in_blocks() -> None:
    projection = get_feature_map("favor", 6, num_features=15).projection
    block = torch.nn.functional.normalize(projection[6:12], dim=1)
    assert_close(block @ block.T, torch.eye(6), rtol=0, atol=1e-5)


def test_hedgehog_learns_queries_and_keys_apart_with_a_matrix_a_head() -> None:
    mapping = get_feature_map("hedgehog", 4, num_heads=3, num_features=10)
    q, k, v = (torch.randn(2, 3, 6, 4) for _ in range(3))
    linear_attention(q, k, v, is_causal=True, feature_map=mapping).sum().backward()
    for weight in (mapping.query_weight, mapping.key_weight):
        assert weight.shape == (3, 4, 5)
        assert weight.grad is not None
        assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["polynomial", "taylor", "favor", "rff", "hedgehog"])
def test_padding_never_reaches_a_map(name: str) -> None:
    q, k, v = (torch.randn(2, 1, 5, 4) for _ in range(3))
    lengths = torch.tensor([5, 2])
    k[1, :, 2:] = torch.nan
    v[1, :, 2:] = torch.nan
    mapping = get_feature_map(name, 4)
    leaves = [*(x.requires_grad_() for x in (k, v)), *mapping.parameters()]
    out = linear_attention(q, k, v, feature_map=mapping, key_lengths=lengths)
    assert out.isfinite().all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("name", ["polynomial", "taylor"])
def test_squares_do_not_overflow_half_precision(name: str) -> None:
    q = torch.full((1, 1, 3, 4), 1e4, dtype=torch.float16)
    assert linear_attention(q, q, q, feature_map=name).isfinite().all()


def test_favor_gradients_hold_where_eps_is_felt() -> None:
    mapping = get_feature_map("favor", 8, generator=torch.Generator().manual_seed(0)).double()
    generator = torch.Generator().manual_seed(1)
    q, k, v = (4 * torch.randn(1, 1, 3, 8, generator=generator).double() for _ in range(3))

    def attend(x: Tensor) -> Tensor:
        return linear_attention(x, k, v, feature_map=mapping, eps=1e-3)

    assert torch.autograd.gradcheck(attend, (q.requires_grad_(),))


def test_a_map_derived_from_elu_computes_what_it_says() -> None:
    class Doubled(Elementwise):
        def queries(self, x: Tensor) -> Tensor:
            return super().queries(2 * x)

    q, k, v = torch.randn(3, 1, 1, 5, 4)
    assert_close(
        linear_attention(q, k, v, feature_map=Doubled("elu")), linear_attention(2 * q, 2 * k, v)
    )
