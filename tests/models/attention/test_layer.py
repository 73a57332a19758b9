"""The layer that replaces torch.nn.MultiheadAttention agrees with its definition in every form."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from linattn_core import LinearAttentionState
from linattn_core.feature_maps import Hedgehog
from linattn_models import LinearAttention
from tests.models.tiny import vectors

E = 8


def layer(**fields: Any) -> LinearAttention:
    return LinearAttention(E, fields.pop("num_heads", 4), **fields).double()


def by_definition(
    attention: LinearAttention, query: Tensor, key: Tensor, value: Tensor, visible: Tensor
) -> Tensor:
    """The quadratic form from the layer's own weights; visible (B, N, L)."""
    heads, dim = attention.num_kv_heads, attention.head_dim
    sizes = [attention.num_heads * dim, heads * dim, heads * dim]
    weights = attention.qkv.weight.split(sizes)
    biases = [None] * 3 if attention.qkv.bias is None else attention.qkv.bias.split(sizes)
    q, k, v = (
        nn.functional.linear(x, w, b).unflatten(-1, (-1, dim)).transpose(1, 2)
        for x, w, b in zip((query, key, value), weights, biases, strict=True)
    )
    group = attention.num_heads // heads
    phi = attention.feature_map
    q, k, v = phi.queries(q), phi.keys(k.repeat_interleave(group, 1)), v.repeat_interleave(group, 1)
    scores = (q @ k.transpose(-1, -2)) * visible.unsqueeze(1)
    if attention.decay is not None:
        steps = torch.arange(query.shape[1])
        distance = (steps[:, None] - steps).clamp(min=0)  # (N, N)
        if attention.decay.weight is None:
            rate = attention.decay().repeat_interleave(group).view(-1, 1, 1)
            scores = scores * (rate * distance).exp()
        else:
            total = attention.decay(key).mT.repeat_interleave(group, 1).cumsum(-1)  # (B, H, L)
            scores = scores * (total[..., None] - total[..., None, :]).clamp(max=0).exp()
    out = scores @ v / (scores.sum(-1, keepdim=True) + attention.eps)
    joined: Tensor = attention.out(out.transpose(1, 2).flatten(2))
    return joined


@given(
    num_kv_heads=st.sampled_from([None, 1, 2, 4]),
    head_dim=st.sampled_from([None, 3]),
    feature_map=st.sampled_from(["elu", "relu", "hedgehog", "taylor"]),
    bias=st.booleans(),
    is_causal=st.booleans(),
    decay=st.sampled_from([None, "fixed", "learned", "gated"]),
)
def test_self_attention_is_the_definition(
    num_kv_heads: int | None,
    head_dim: int | None,
    feature_map: str,
    bias: bool,
    is_causal: bool,
    decay: str | None,
) -> None:
    attention = layer(
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        feature_map=feature_map,
        bias=bias,
        decay=decay if is_causal else None,
    )
    x = vectors(2, 6)
    visible = torch.ones(2, 6, 6)
    expected = by_definition(attention, x, x, x, visible.tril() if is_causal else visible)
    torch.testing.assert_close(attention(x, is_causal=is_causal), expected)


def test_cross_attention_and_its_masks_are_the_definition() -> None:
    attention = layer(num_kv_heads=2)
    query, key, value = vectors(2, 3), vectors(2, 5), vectors(2, 5)
    whole = torch.ones(2, 3, 5)
    torch.testing.assert_close(
        attention(query, key, value), by_definition(attention, query, key, value, whole)
    )
    torch.testing.assert_close(
        attention(query, key), by_definition(attention, query, key, key, whole)
    )
    mask = torch.tensor([[True, False, True, True, False], [True, True, True, True, True]])
    lengths = torch.tensor([5, 3])
    visible = (mask & (torch.arange(5) < lengths[:, None])).double()
    torch.testing.assert_close(
        attention(query, key, attn_mask=mask, key_lengths=lengths),
        by_definition(attention, query, key, key, visible.unsqueeze(1).expand(2, 3, 5)),
    )


@pytest.mark.parametrize("decay", [None, "learned", "gated"])
@pytest.mark.parametrize("num_kv_heads", [1, 4])
def test_steps_and_parts_are_the_whole(decay: str | None, num_kv_heads: int) -> None:
    attention = layer(num_kv_heads=num_kv_heads, decay=decay)
    x = vectors(2, 7)
    whole = attention(x, is_causal=True)
    _, state = attention(x[:, :3], is_causal=True, return_state=True)
    assert state.s.shape == (2, num_kv_heads, 2, 2)
    rest = attention(x[:, 3:], is_causal=True, state=state)
    torch.testing.assert_close(rest, whole[:, 3:])
    state = attention.initial_state(2)
    with torch.no_grad():
        for position in range(7):
            y, state = attention.step(x[:, position], state)
            torch.testing.assert_close(y, whole[:, position])


def test_a_memory_is_summed_once_and_read_by_calls_without_keys() -> None:
    attention = layer()
    query, memory = vectors(2, 3), vectors(2, 5)
    whole, sums = attention(query, memory, return_state=True)
    torch.testing.assert_close(attention(query, memory[:, :0], state=sums), whole)


def test_decays_are_those_of_retnet_and_saved() -> None:
    fixed = layer(decay="fixed")
    assert fixed.decay is not None
    factors = 1 - 2.0 ** (-5 - torch.arange(4, dtype=torch.float64))
    torch.testing.assert_close(fixed.decay().exp(), factors, rtol=1e-6, atol=0)
    assert "decay.logits" in fixed.state_dict()
    assert "decay.logits" not in dict(fixed.named_parameters())


def test_works_in_bfloat16_and_compiles_into_one_graph() -> None:
    attention = LinearAttention(E, 4, num_kv_heads=2)
    x = torch.randn(2, 5, E)
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, is_causal=True), attention(x, is_causal=True))
    assert attention.bfloat16()(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_heads": 3}, "embed_dim"),
        ({"num_kv_heads": 3}, "num_kv_heads"),
        ({"head_dim": 0}, "head_dim"),
        ({"num_heads": 0}, "num_heads"),
        ({"eps": -1.0}, "eps"),
        ({"decay": "retnet"}, "decay"),
        ({"feature_map": "elo"}, "elu"),
        (
            {"feature_map": "hedgehog", "feature_map_options": {"num_heads": 4}, "num_kv_heads": 2},
            "num_kv_heads",
        ),
        ({"feature_map": Hedgehog(2, num_heads=2)}, "Hedgehog"),
    ],
)
def test_refuses_sizes_and_names_that_cannot_be_right(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        layer(**fields)


def nested(x: Tensor, kind: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([x[0], x[1, :3]], layout=kind)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        (lambda a, x: a(x[..., :7]), ValueError, "query"),
        (lambda a, x: a(x, x[0]), ValueError, "key"),
        *[
            (lambda a, x, kind=kind: a(nested(x, kind)), TypeError, "query: .* a nested tensor")
            for kind in (torch.strided, torch.jagged)
        ],
        (lambda a, x: a(x, nested(x, torch.strided)), TypeError, "key: .* a nested tensor"),
        (lambda a, x: a(x, value=x), ValueError, "value"),
        (lambda a, x: a(x, x[:, :3], is_causal=True), ValueError, "queries"),
        (lambda a, x: a(x, attn_mask=torch.zeros(5, 5)), TypeError, "attn_mask"),
        (lambda a, x: a(x, key_lengths=torch.tensor([6, 1])), ValueError, "key_lengths"),
        (lambda a, x: a.step(x, a.initial_state(2)), ValueError, "shape"),
        (lambda a, x: a.step(x[:, 0], a.initial_state(3)), ValueError, "state"),
        (lambda a, x: a.step(x[:, 0], (1, 2)), TypeError, "state"),
        (
            lambda a, x: a(x, state=LinearAttentionState.zeros(2, 4, 2, 2)),
            ValueError,
            "initial_state",
        ),
        (lambda a, x: a(x, x, x, key_padding_mask=None), TypeError, "key_padding_mask"),
        (lambda a, x: a(x, x, x, need_weights=False), TypeError, "need_weights"),
        (lambda a, x: a(x, causal=True), TypeError, "is_causal"),
        (lambda a, x: a.initial_state(0), ValueError, "batch"),
    ],
)
def test_refuses_calls_that_cannot_be_right(call: Any, error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call(layer(num_kv_heads=2), vectors(2, 5))


def test_batch_first_is_the_only_layout() -> None:
    assert layer(batch_first=True)(vectors(2, 5)).shape == (2, 5, E)
    with pytest.raises(ValueError, match=r"batch_first: .* transpose"):
        layer(batch_first=False)


def test_a_layer_with_a_decay_is_causal_only() -> None:
    with pytest.raises(ValueError, match="log_decay"):
        layer(decay="fixed")(vectors(2, 5))


class Doubled(nn.Module):
    """A linear layer with something added, as adapters do."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return 2 * nn.functional.linear(x, self.weight, self.bias)


@pytest.mark.parametrize("how", ["module", "hook", "forward"])
def test_cross_attention_sees_what_was_added_to_its_projection(how: str) -> None:
    attention = layer(num_kv_heads=2)
    if how == "module":
        attention.qkv = Doubled(attention.qkv)  # type: ignore[assignment]
    elif how == "hook":
        attention.qkv.register_forward_hook(lambda module, inputs, output: 2 * output)
    else:
        attention.qkv.forward = Doubled(attention.qkv).forward  # type: ignore[method-assign]
    x = vectors(2, 5)
    torch.testing.assert_close(attention(x, x.clone()), attention(x))
    torch.testing.assert_close(attention.read(x, attention.sums(x)), attention(x))
