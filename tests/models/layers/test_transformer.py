"""`forward`: each position sees the positions that it may see, and every weight has a gradient."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import Transformer
from linattn_models.layers.block import Block
from tests.models.tiny import ATTENTIONS, tiny_config, tiny_transformer

LAYOUTS: list[dict[str, Any]] = [
    {"norm_first": True, "ffn": "gelu"},
    {"norm_first": False, "ffn": "relu"},
    {"norm": "rms", "ffn": "swiglu", "bias": False, "rotary": True},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_outputs_before_a_changed_input_are_identical(
    attention: str, layout: dict[str, Any]
) -> None:
    model = tiny_transformer(attention, **layout)
    x = torch.randn(2, 8, 8, dtype=torch.float64)
    changed = x.clone()
    changed[:, 5] *= -1.0
    before, after = model(x), model(changed)
    assert torch.equal(before[:, :5], after[:, :5])
    assert ((before[:, 5:] - after[:, 5:]).abs().amax(-1) > 1e-9).all()


def test_a_gated_block_with_rms_norms_is_the_formula() -> None:
    model = tiny_transformer(norm="rms", ffn="swiglu", bias=False, num_layers=1)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    weights = {name.removesuffix(".weight"): x for name, x in model.named_parameters()}
    block = cast(Block, model.blocks[0])
    x = torch.randn(2, 5, 8, dtype=torch.float64)

    def rms(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * weights[name]

    y = x + block.mixer(rms(x, "blocks.0.norm1"))
    inner = rms(y, "blocks.0.norm2")
    gate, expand = (inner @ weights[f"blocks.0.{name}"].T for name in ("gate", "expand"))
    y = y + (gate * gate.sigmoid() * expand) @ weights["blocks.0.contract"].T
    torch.testing.assert_close(model(x), rms(y, "norm"))
    assert not any("bias" in name for name, _ in model.named_parameters())


def test_without_causality_every_output_sees_every_input(attention: str) -> None:
    model = tiny_transformer(attention, is_causal=False)
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    before = model(x)
    for position in range(6):
        changed = x.clone()
        changed[:, position] *= -1.0
        assert ((before - model(changed)).abs().amax(-1) > 1e-9).all(), position


@given(
    attention=st.sampled_from(ATTENTIONS),
    is_causal=st.booleans(),
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
)
def test_padding_is_as_if_it_were_not_there(
    attention: str, is_causal: bool, lengths: list[int]
) -> None:
    model = tiny_transformer(attention, is_causal=is_causal)
    x = torch.randn(len(lengths), 6, 8, dtype=torch.float64)
    padded = model(x, torch.tensor(lengths))
    assert padded.isfinite().all()
    for row, length in enumerate(lengths):
        if length:
            alone = model(x[row : row + 1, :length])
            torch.testing.assert_close(padded[row, :length], alone[0])


@given(
    attention=st.sampled_from(ATTENTIONS),
    is_causal=st.booleans(),
    mask=st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3),
    with_lengths=st.booleans(),
)
def test_masked_positions_are_as_if_they_were_not_there(
    attention: str, is_causal: bool, mask: list[list[bool]], with_lengths: bool
) -> None:
    model = tiny_transformer(attention, is_causal=is_causal)
    x = torch.randn(len(mask), 6, 8, dtype=torch.float64, requires_grad=True)
    lengths = torch.full((len(mask),), 4) if with_lengths else None
    padded = model(x, lengths, attn_mask=torch.tensor(mask))
    assert padded.isfinite().all()
    weights = torch.randn_like(padded)
    for row, seen in enumerate(mask):
        real = torch.tensor(seen).nonzero().flatten()
        real = real[real < 4] if with_lengths else real
        if not len(real):
            continue
        alone = model(x[row : row + 1, real])
        torch.testing.assert_close(padded[row, real], alone[0])
        (ours,) = torch.autograd.grad((padded * weights)[row, real].sum(), x, retain_graph=True)
        (theirs,) = torch.autograd.grad((alone[0] * weights[row, real]).sum(), x)
        torch.testing.assert_close(ours, theirs)


def test_a_mask_in_blocks_says_what_lengths_say(attention: str) -> None:
    model = tiny_transformer(attention, causal_block=2)
    x, lengths = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([5, 3, 2])
    mask = torch.arange(5) < lengths.unsqueeze(1)
    expected, masked = model(x, lengths), model(x, attn_mask=mask)
    torch.testing.assert_close(masked[mask], expected[mask])


@pytest.mark.parametrize(
    "mask", [torch.ones(2, 4, dtype=torch.bool), torch.ones(2, 5), [[True] * 5] * 2]
)
def test_refuses_other_masks(mask: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="attn_mask"):
        tiny_transformer()(torch.zeros(2, 5, 8, dtype=torch.float64), attn_mask=mask)


def test_lsh_attention_takes_lengths_alone() -> None:
    model = tiny_transformer("lsh-1").float()
    with pytest.raises(ValueError, match="attn_mask"):
        model(torch.zeros(1, 5, 8), attn_mask=torch.ones(1, 5, dtype=torch.bool))


def test_a_row_without_keys_attends_to_nothing(attention: str) -> None:
    model = tiny_transformer(attention, is_causal=False)
    x = torch.randn(2, 4, 8, dtype=torch.float64, requires_grad=True)
    (model(x, torch.tensor([0, 4]))[0, 1] * torch.randn(8)).sum().backward()
    assert x.grad is not None
    assert (x.grad[:, [0, 2, 3]] == 0).all() and (x.grad[0, 1].abs() > 1e-9).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradient_reaches_every_parameter(attention: str, layout: dict[str, Any]) -> None:
    model = tiny_transformer(attention, feature_map="hedgehog", **layout)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    (model(x) * torch.randn_like(x)).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("is_causal", [True, False])
def test_compiles_into_one_graph(attention: str, is_causal: bool) -> None:
    model = tiny_transformer(attention, is_causal=is_causal)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
    lengths = torch.tensor([5, 3])
    torch.testing.assert_close(compiled(x, lengths)[1, :3], model(x, lengths)[1, :3])
    torch.testing.assert_close(compiled(x), model(x))
    weights = torch.randn_like(x)
    (gradient,) = torch.autograd.grad((compiled(x) * weights).sum(), x)
    (expected,) = torch.autograd.grad((model(x) * weights).sum(), x)
    torch.testing.assert_close(gradient, expected)


def test_drops_out_in_training_only(attention: str) -> None:
    model = tiny_transformer(attention, dropout=0.5)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    assert torch.equal(model(x), model(x))
    model.train()
    assert not torch.equal(model(x), model(x))


def test_bfloat16_stays_close_to_float32(attention: str) -> None:
    model = Transformer(tiny_config(attention))
    x = torch.randn(2, 50, 8)
    exact = model(x)
    half = model.bfloat16()(x.bfloat16())
    assert half.dtype == torch.bfloat16
    assert (half.float() - exact).abs().max() < 0.15  # outputs have variance 1


@pytest.mark.parametrize(
    ("shape", "lengths", "named"),
    [
        ((2, 5, 7), None, "shape"),
        ((5, 8), None, "shape"),
        ((2, 5, 8), torch.tensor([1]), "lengths"),
        ((2, 5, 8), torch.tensor([1, 6]), "lengths"),
        ((2, 5, 8), torch.tensor([-1, 5]), "lengths"),
        ((2, 5, 8), torch.tensor([1.0, 2.0]), "lengths"),
        ((2, 5, 8), [1, 2], "lengths"),
    ],
)
def test_refuses_what_cannot_be_right(shape: tuple[int, ...], lengths: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        tiny_transformer().float()(torch.zeros(shape), lengths)


def test_options_that_the_feature_map_lacks_are_refused() -> None:
    with pytest.raises(TypeError, match="num_feature"):
        tiny_transformer(feature_map="favor", feature_map_options={"num_feature": 6})


@pytest.mark.parametrize("name", ["", "blocks.1", "blocks.0.mixer"])
def test_steps_refuse_hooks_that_they_would_not_run(name: str) -> None:
    model, x = tiny_transformer(), torch.randn(2, 3, 8).double()
    _, state = model.prefill(x)
    hook = model.get_submodule(name).register_forward_hook(lambda module, inputs, out: out * 2)
    with pytest.raises(ValueError, match="forward hook"):
        model.prefill(x)
    with pytest.raises(ValueError, match="forward hook"):
        model.step(x[:, 0], state)
    hook.remove()
    inside = model.get_submodule("blocks.0.norm1")
    inside.register_forward_hook(lambda module, inputs, out: out * 2)
    out, _ = model.prefill(x)
    torch.testing.assert_close(out, model(x))
