"""Each map's inner product is the kernel that it says it is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from linattn_core import (
    FeatureMap,
    feature_map_names,
    get_feature_map,
    linear_attention,
    reference,
    register_feature_map,
)
from linattn_core.feature_maps import Elementwise, registry
from linattn_core.feature_maps.registry import shared_feature_map


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


def test_calls_by_name_share_their_features() -> None:
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    first = linear_attention(q, k, v, feature_map="favor")
    assert torch.equal(first, linear_attention(q, k, v, feature_map="favor"))


def test_own_maps_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    class Square(FeatureMap):
        def queries(self, x: Tensor) -> Tensor:
            return x.square()

        def feature_dim(self, head_dim: int) -> int:
            return head_dim

    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    register_feature_map("square", lambda head_dim: Square())
    q, k, v = (torch.randn(1, 2, 6, 4) for _ in range(3))
    assert_close(
        linear_attention(q, k, v, feature_map="square"),
        linear_attention(q.square(), k.square(), v, feature_map="identity"),
    )
    with pytest.raises(ValueError, match="expected one that no feature map has, got 'square'"):
        register_feature_map("square", lambda head_dim: Square())


@pytest.mark.parametrize(
    ("name", "options", "error", "says"),
    [
        ("ellu", {}, ValueError, "did you mean 'elu'"),
        ("zzz", {}, ValueError, "known are 'elu'"),
        (3, {}, TypeError, "a name or a FeatureMap, got a value of type int"),
        ("elu", {"num_features": 3}, TypeError, "'elu'.*num_features"),
        ("favor", {"num_features": 0}, ValueError, "a positive number, got 0"),
        ("rff", {"num_features": 3}, ValueError, "multiple of 2, got 3"),
        ("rff", {"lengthscale": -1.0}, ValueError, "above 0, got -1.0"),
        ("hedgehog", {"num_features": 5}, ValueError, "even number, got 5"),
    ],
)
def test_refusals(name: str, options: dict, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        get_feature_map(name, 4, **options)


def test_a_map_must_give_what_it_promises() -> None:
    class Twice(FeatureMap):
        def queries(self, x: Tensor) -> Tensor:
            return torch.cat((x, x), -1)

        def feature_dim(self, head_dim: int) -> int:
            return head_dim

    q = torch.rand(1, 2, 3, 4)
    says = r"expected \(1, 2, 3, 4\) from queries \(1, 2, 3, 4\), .* got \(1, 2, 3, 8\)"
    with pytest.raises(ValueError, match=says):
        linear_attention(q, q, q, feature_map=Twice())


@pytest.mark.parametrize(
    ("feature_map", "says"),
    [
        (get_feature_map("favor", 8), "Favor: expected head dim 8"),
        (get_feature_map("rff", 8), "RandomFourier: expected head dim 8"),
        (get_feature_map("hedgehog", 8), "Hedgehog: expected head dim 8"),
        (get_feature_map("hedgehog", 4, num_heads=3), "Hedgehog: expected 3 heads"),
    ],
    ids=["favor", "rff", "hedgehog", "heads"],
)
def test_a_map_built_for_other_heads_says_so(feature_map: FeatureMap, says: str) -> None:
    q = torch.rand(1, 2, 3, 4)
    with pytest.raises(ValueError, match=says):
        linear_attention(q, q, q, feature_map=feature_map)


def test_a_factory_that_makes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    register_feature_map("wrong", lambda head_dim: torch.nn.ReLU())
    with pytest.raises(TypeError, match=r"'wrong': expected a FeatureMap, got .* type ReLU"):
        get_feature_map("wrong", 8)


MAPPED = ("polynomial", "taylor", "favor", "rff", "hedgehog")


@pytest.mark.parametrize("name", MAPPED[:-1])
@pytest.mark.parametrize("mode", ["inference", "device", "export", "vmap"])
def test_a_shared_map_outlives_the_mode_it_was_first_used_in(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_shared", {})
    q = torch.rand(2, 2, 3, 4)

    def attend(x: Tensor) -> Tensor:
        return linear_attention(x, x, x, feature_map=name)

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return attend(x)

    if mode == "inference":
        with torch.inference_mode():
            attend(q)
    elif mode == "device":
        with torch.device("meta"):
            shared_feature_map(name, 4)
    elif mode == "export":
        torch.export.export(Module(), (q,))
    else:
        torch.vmap(lambda x: shared_feature_map(name, 4).queries(x))(q)
    assert type(attend(q)) is Tensor
    attend(q.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize("name", MAPPED)
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


@pytest.mark.parametrize("attend", [linear_attention, reference.quadratic])
def test_a_learned_map_by_name_says_what_to_do_instead(attend: Callable[..., Tensor]) -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"learned, got the name 'hedgehog'; keep get_feature_map"):
        attend(q, q, q, feature_map="hedgehog")


@pytest.mark.parametrize("name", ["favor", "rff"])
def test_the_definition_has_the_random_features_of_the_operator(name: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    out = linear_attention(q, k, v, feature_map=name)
    assert_close(reference.quadratic(q, k, v, feature_map=name), out)
    assert_close(reference.recurrent(q, k, v, feature_map=name), out)


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


@pytest.mark.parametrize("name", MAPPED[:-1])
def test_calls_by_name_compile_with_dynamic_shapes(name: str) -> None:
    q = torch.rand(1, 2, 5, 4)

    def attend(x: Tensor) -> Tensor:
        return linear_attention(x, x, x, is_causal=True, feature_map=name)

    torch.compiler.reset()  # each name is another graph of one and the same function
    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.no_grad():
        assert_close(compiled(q), attend(q))
        assert_close(compiled(q[:, :, :3]), attend(q[:, :, :3]))


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["favor", "rff"])
def test_calls_by_name_do_not_depend_on_the_default_dtype(
    name: str, default: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = shared_feature_map(name, 6).projection
    monkeypatch.setattr(registry, "_shared", {})
    torch.set_default_dtype(default)
    try:
        found = shared_feature_map(name, 6).projection
    finally:
        torch.set_default_dtype(torch.float32)

    assert found.dtype == torch.float32 and torch.equal(found, expected)


def test_a_map_derived_from_elu_computes_what_it_says() -> None:
    class Doubled(Elementwise):
        def queries(self, x: Tensor) -> Tensor:
            return super().queries(2 * x)

    q, k, v = torch.randn(3, 1, 1, 5, 4)
    assert_close(
        linear_attention(q, k, v, feature_map=Doubled("elu")), linear_attention(2 * q, 2 * k, v)
    )
