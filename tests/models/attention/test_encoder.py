"""EncoderAttention is linear attention inside PyTorch's own modules."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from linattn_models import EncoderAttention, LinearAttention

E, H, N = 16, 4, 9
CAUSAL = torch.ones(N, N, dtype=torch.bool).triu(1)


def encoder(batch_first: bool = True, **options: Any) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        E, H, 32, dropout=0.0, batch_first=batch_first, dtype=torch.float64
    )
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=batch_first)
    return EncoderAttention.replace_in(stack, **options)


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, E, dtype=torch.float64)


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_of_softmax_stay_and_attend_linearly(bias: bool) -> None:
    softmax = nn.MultiheadAttention(E, H, bias=bias, batch_first=True, dtype=torch.float64)
    layer = EncoderAttention.from_softmax(softmax, feature_map="relu")
    assert set(map(id, layer.parameters())) == set(map(id, softmax.parameters()))
    linear = LinearAttention(E, H, feature_map="relu", bias=bias).double()
    weights = [softmax.in_proj_weight, softmax.out_proj.weight]
    biases = [softmax.in_proj_bias, softmax.out_proj.bias] if bias else []
    with torch.no_grad():
        for new, old in zip([linear.qkv, linear.out], weights, strict=True):
            new.weight.copy_(old)
        for new, vector in zip([linear.qkv, linear.out], biases, strict=False):
            new.bias.copy_(vector)
    x, memory = vectors(2, N), vectors(2, 5)
    torch.testing.assert_close(layer(x, x, x)[0], linear(x))
    torch.testing.assert_close(layer(x, memory, memory)[0], linear(x, memory))
    torch.testing.assert_close(layer(x, memory, 2 * memory)[0], linear(x, memory, 2 * memory))
    torch.testing.assert_close(
        layer(x, x, x, attn_mask=CAUSAL, is_causal=True)[0], linear(x, is_causal=True)
    )


@settings(max_examples=16)
@given(
    training=st.booleans(),
    causal=st.booleans(),
    side=st.sampled_from(["left", "right", "both", "none"]),
    batch_first=st.booleans(),
)
def test_padded_rows_are_what_they_are_alone(
    training: bool, causal: bool, side: str, batch_first: bool
) -> None:
    model = encoder(batch_first).train(training)
    x = vectors(2, N)
    start = {"left": 3, "right": 0, "both": 2, "none": 0}[side]
    end = {"left": N, "right": 6, "both": 7, "none": N}[side]
    padding = torch.zeros(2, N, dtype=torch.bool)
    padding[1] = True
    padding[1, start:end] = False

    def run(rows: Tensor, mask: Tensor | None) -> Tensor:
        size = rows.shape[1]
        how = {"mask": CAUSAL[:size, :size], "is_causal": True} if causal else {}
        turned = rows if batch_first else rows.transpose(0, 1)
        out = cast(Tensor, model(turned, src_key_padding_mask=mask, **how))
        return out if batch_first else out.transpose(0, 1)

    with torch.no_grad():
        padded = run(x, padding)
        torch.testing.assert_close(padded[:1], run(x[:1], None))
        torch.testing.assert_close(padded[1:, start:end], run(x[1:, start:end], None))
    torch.testing.assert_close(run(x, padding), padded)  # with gradients


def test_training_and_evaluation_agree() -> None:
    model, x = encoder(), vectors(3, N)
    with torch.no_grad():
        torch.testing.assert_close(model.train()(x), model.eval()(x))
        torch.testing.assert_close(model(x[0]), model(x[:1])[0])  # one sequence, without a batch


def test_a_whole_transformer_is_replaced() -> None:
    whole = nn.Transformer(E, H, 1, 1, 32, dropout=0.0, batch_first=True, dtype=torch.float64)
    EncoderAttention.replace_in(whole)
    assert not any(isinstance(module, nn.MultiheadAttention) for module in whole.modules())
    assert sum(isinstance(module, EncoderAttention) for module in whole.modules()) == 3
    source, target = vectors(2, N), vectors(2, 4)
    padding = torch.arange(N) >= torch.tensor([[N], [5]])
    masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding}
    alone = whole(source[1:, :5], target[1:])
    torch.testing.assert_close(whole(source, target, **masks)[1:], alone)


def test_it_compiles_whole() -> None:
    model, x = encoder(), vectors(2, N)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"kdim": 8}, "none of kdim"),
        ({"vdim": 8}, "none of kdim"),
        ({"add_bias_kv": True}, "none of kdim"),
        ({"add_zero_attn": True}, "none of kdim"),
    ],
)
def test_what_only_softmax_has_is_refused(options: dict[str, Any], wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        EncoderAttention.from_softmax(nn.MultiheadAttention(E, H, **options))


def test_bad_input_is_refused_by_a_sentence() -> None:
    layer, x = EncoderAttention(E, H).double(), vectors(2, N)
    with pytest.raises(ValueError, match="need_weights"):
        layer(x, x, x, need_weights=True)
    with pytest.raises(ValueError, match="is_causal=True"):
        layer(x, x, x, attn_mask=CAUSAL)
    with pytest.raises(ValueError, match="batch_first"):
        EncoderAttention(E, H, batch_first=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"nn\.MultiheadAttention"):
        EncoderAttention.replace_in(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="projections of softmax"):
        encoder(num_kv_heads=1)
    stack = nn.TransformerEncoder(nn.TransformerEncoderLayer(E, H, batch_first=True), 1).eval()
    stack.layers[0].self_attn = layer
    padding = torch.arange(N) >= torch.tensor([[N], [5]])
    with pytest.raises(ValueError, match="use_nested_tensor"):
        stack.double()(x, src_key_padding_mask=padding)
