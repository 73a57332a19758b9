"""Feature maps by name and of one's own: found, shared between calls, and refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from linattn_core import (
    FeatureMap,
    LinearAttentionState,
    get_feature_map,
    linear_attention,
    linear_attention_step,
    reference,
    register_feature_map,
)
from linattn_core.feature_maps import Elementwise, registry
from linattn_core.feature_maps.registry import shared_feature_map

# Computed outside the kernels, and by name.
SHARED = ("polynomial", "taylor", "favor", "rff")


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
    with pytest.raises(ValueError, match="square"):
        register_feature_map("square", lambda head_dim: Square())
    with pytest.raises(TypeError, match="name"):
        register_feature_map(3, lambda head_dim: Square())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="factory"):
        register_feature_map("four", 4)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "options", "error"),
    [
        ("ellu", {}, ValueError),
        (3, {}, TypeError),
        ("elu", {"num_features": 3}, TypeError),
        ("favor", {"num_features": 0}, ValueError),
        ("favor", {"num_features": 4.0}, ValueError),
        ("favor", {"generator": 3}, TypeError),
        ("rff", {"num_features": 3}, ValueError),
        ("rff", {"lengthscale": -1.0}, ValueError),
        ("rff", {"lengthscale": "a"}, ValueError),
        ("hedgehog", {"num_features": 5}, ValueError),
        ("hedgehog", {"num_heads": 0}, ValueError),
        ("hedgehog", {"num_kv_heads": 2}, ValueError),
    ],
)
def test_names_and_options_that_cannot_be_are_refused(
    name: str, options: dict, error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(options), "feature_map")):
        get_feature_map(name, 4, **options)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.repeat(1, 1, 100, 1),
        lambda x: x[:, :, ::2],
        lambda x: x[:, :1],
        lambda x: x[:1],
        lambda x: x.tolist(),
    ],
)
def test_kernels_read_no_features_of_other_shapes(change: Callable[[Tensor], Any]) -> None:
    class Keys(FeatureMap):
        def queries(self, x: Tensor) -> Tensor:
            return x.abs()

        def keys(self, x: Tensor) -> Tensor:
            return change(x.abs())

        def feature_dim(self, head_dim: int) -> int:
            return head_dim

    q = torch.rand(2, 2, 6, 4)
    with pytest.raises((ValueError, TypeError), match=r"Keys\.keys"):
        linear_attention(q, q, q, feature_map=Keys())


@pytest.mark.parametrize(
    "change", [torch.Tensor.to_sparse, lambda x: torch.complex(x, x)], ids=["sparse", "complex"]
)
def test_features_are_real_and_dense(change: Callable[[Tensor], Tensor]) -> None:
    class Queries(FeatureMap):
        def queries(self, x: Tensor) -> Tensor:
            return change(x)

        def keys(self, x: Tensor) -> Tensor:
            return x

        def feature_dim(self, head_dim: int) -> int:
            return head_dim

    q = torch.rand(1, 2, 3, 4)
    with pytest.raises(TypeError, match=r"^Queries\.queries: "):
        linear_attention(q, q, q, feature_map=Queries())


@pytest.mark.parametrize("feature_map", [np.array(["elu"]), ["elu"], len, None], ids=str)
def test_only_names_and_maps_are_taken(feature_map: Any) -> None:
    """An array of one name equals the name."""
    q, state = torch.rand(1, 2, 3, 4), LinearAttentionState.zeros(1, 2, 4, 4)
    with pytest.raises(TypeError, match="feature_map"):
        linear_attention(q, q, q, feature_map=feature_map)
    with pytest.raises(TypeError, match="feature_map"):
        linear_attention_step(*3 * (q[:, :, 0],), state, feature_map=feature_map)


def test_a_map_cannot_name_one_that_kernels_lack() -> None:
    with pytest.raises(ValueError, match="gelu"):
        Elementwise("gelu")

    class Softplus(FeatureMap):
        pointwise = "softplus"

    q = torch.rand(1, 2, 3, 4)
    with pytest.raises(ValueError, match="softplus"):
        linear_attention(q, q, q, feature_map=Softplus())


@pytest.mark.parametrize(
    "feature_map",
    [
        *(get_feature_map(name, 8) for name in ("favor", "rff", "hedgehog")),
        get_feature_map("hedgehog", 4, num_heads=3),
    ],
    ids=["favor", "rff", "hedgehog", "heads"],
)
def test_a_map_built_for_other_heads_is_refused(feature_map: FeatureMap) -> None:
    q = torch.rand(1, 2, 3, 4)
    with pytest.raises(ValueError, match=type(feature_map).__name__):
        linear_attention(q, q, q, feature_map=feature_map)


def test_a_factory_that_makes_something_else_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_factories", dict(registry._factories))
    register_feature_map("wrong", lambda head_dim: torch.nn.ReLU())
    with pytest.raises(TypeError, match="wrong"):
        get_feature_map("wrong", 8)


@pytest.mark.parametrize("name", SHARED)
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


@pytest.mark.parametrize("attend", [linear_attention, reference.quadratic])
def test_a_learned_map_by_name_is_refused(attend: Callable[..., Tensor]) -> None:
    q = torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="hedgehog"):
        attend(q, q, q, feature_map="hedgehog")


@pytest.mark.parametrize("name", ["favor", "rff"])
def test_the_definition_has_the_random_features_of_the_operator(name: str) -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4)
    out = linear_attention(q, k, v, feature_map=name)
    assert_close(reference.quadratic(q, k, v, feature_map=name), out)
    assert_close(reference.recurrent(q, k, v, feature_map=name), out)


def test_calls_by_name_compile_with_dynamic_shapes() -> None:
    q = torch.rand(1, 2, 5, 4)

    def attend(x: Tensor) -> Tensor:
        return linear_attention(x, x, x, is_causal=True, feature_map="favor")

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
