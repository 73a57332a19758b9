"""Grouped heads, decay and block-causal attention in a transformer agree with their definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from linattn_core.reference import quadratic
from linattn_models import (
    AutoregressiveTransformer,
    Linear,
    Softmax,
    Transformer,
    TransformerConfig,
    compile_decoder,
)
from tests.models.tiny import ATTENTIONS, tiny_config, tiny_transformer, vectors


def with_all_heads(model: Transformer, **fields: Any) -> Transformer:
    """The same function without groups: each key and value head stands once for every query."""
    config = model.config
    whole = Transformer(tiny_config(config.attention, **fields)).double().eval()
    state = model.state_dict()
    heads, groups = config.num_heads, config.num_heads // (config.num_kv_heads or 1)
    for name, x in state.items():
        if "mixer.qkv" in name:
            by_head = x.unflatten(0, (-1, config.head_dim))
            query, rest = by_head[:heads], by_head[heads:]
            state[name] = torch.cat([query, rest.repeat_interleave(groups, 0)]).flatten(0, 1)
    whole.load_state_dict(state)
    return whole


@pytest.mark.parametrize("is_causal", [True, False])
def test_grouped_heads_share_keys_and_values(attention: str, is_causal: bool) -> None:
    model = tiny_transformer(attention, num_kv_heads=1, is_causal=is_causal)
    x = vectors(2, 6)
    torch.testing.assert_close(model(x), with_all_heads(model, is_causal=is_causal)(x))
    if is_causal:
        sizes = [
            tiny_transformer(attention, num_kv_heads=n).initial_state(1, max_length=8).nbytes
            for n in (1, 2)
        ]
        assert 2 * sizes[0] == sizes[1]


def masked(model: Transformer, x: Tensor, lengths: list[int] | None = None) -> Tensor:
    """The block-causal model by its definition: each position by a pass over what it sees."""
    block, outputs = model.config.causal_block, []
    plain = Transformer(tiny_config(model.config.attention, is_causal=False)).double().eval()
    plain.load_state_dict(model.state_dict())
    for row in range(len(x)):
        length = x.shape[1] if lengths is None else lengths[row]
        hidden = x[row : row + 1, :length]
        for layer in plain.blocks:
            ends = [min((i // block + 1) * block, length) for i in range(length)]
            hidden = torch.cat(
                [layer(hidden[:, :end])[:, i : i + 1] for i, end in enumerate(ends)], 1
            )
        outputs.append(plain.norm(hidden)[0])
    return pad_sequence(outputs, batch_first=True)


@given(
    attention=st.sampled_from(ATTENTIONS),
    block=st.integers(2, 5),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
@settings(max_examples=50)
def test_a_block_sees_itself_and_all_before(attention: str, block: int, lengths: list[int]) -> None:
    """And no padding."""
    model = tiny_transformer(attention, causal_block=block)
    x = vectors(len(lengths), max(lengths)).requires_grad_()
    real = torch.arange(x.shape[1]) < torch.tensor(lengths)[:, None]
    outputs, expected = model(x, torch.tensor(lengths)), masked(model, x, lengths)
    torch.testing.assert_close(outputs[real], expected[real])
    upstream = vectors(*x.shape[:2])[real]
    actual, wanted = (torch.autograd.grad(y[real], x, upstream) for y in (outputs, expected))
    torch.testing.assert_close(actual, wanted)


@torch.no_grad()
def test_blocks_in_autocast_stay_near(attention: str) -> None:
    model = tiny_transformer(attention, causal_block=3).float()
    x = vectors(2, 8).float()
    with torch.autocast("cpu", torch.bfloat16):
        outputs, (prefilled, _) = model(x), model.prefill(x, max_length=8)
    for actual in (outputs, prefilled):
        assert (actual.float() - model(x)).abs().max() < 0.1


def test_blocks_go_on_from_a_state(attention: str) -> None:
    model = tiny_transformer(attention, causal_block=3)
    x = vectors(2, 11)
    with torch.no_grad():
        first, state = model.prefill(x[:, :3], max_length=11)
        second, state = model.prefill(x[:, 3:9], state=state)
        third, state = model.prefill(x[:, 9:], state=state)
        torch.testing.assert_close(torch.cat([first, second, third], 1), model(x))
    with pytest.raises(ValueError, match="causal_block"):
        model.prefill(x[:, :1], state=state)


def test_blocks_do_not_step_compile_or_predict_tokens(attention: str) -> None:
    model = tiny_transformer(attention, causal_block=2).float()
    state = model.initial_state(1, max_length=4)
    with pytest.raises(ValueError, match="causal_block"):
        model.step(vectors(1).float(), state)
    with pytest.raises(ValueError, match="linear attention"):
        compile_decoder(model)
    with pytest.raises(ValueError, match="causal_block"):
        AutoregressiveTransformer(model.config, 7, 9)


def test_a_gated_decay_is_read_from_the_input() -> None:
    mixer = tiny_transformer(decay="gated", num_kv_heads=1).blocks[0].mixer
    x, upstream = vectors(2, 9).requires_grad_(), vectors(2, 9)
    logits = x @ mixer.decay.weight.mT + mixer.decay.logits
    heads = quadratic(
        *mixer.project(x)[:3], is_causal=True, enable_gqa=True, log_decay=logits.sigmoid().log().mT
    )
    torch.testing.assert_close(mixer(x), mixer.join(heads))
    inputs = [x, mixer.qkv.weight, *mixer.decay.parameters()]
    actual = torch.autograd.grad((mixer(x) * upstream).sum(), inputs)
    wanted = torch.autograd.grad((mixer.join(heads) * upstream).sum(), inputs)
    torch.testing.assert_close(actual, wanted)


@given(block=st.integers(2, 5), length=st.integers(1, 9), count=st.integers(0, 9))
def test_a_block_decays_by_the_product_of_its_positions(
    block: int, length: int, count: int
) -> None:
    """Padding and masked positions, whatever they hold, decay nothing."""
    mixer = tiny_transformer(decay="gated", causal_block=block).blocks[0].mixer
    x, count = vectors(1, length), min(count, length)
    lengths, mask = torch.tensor([count]), torch.arange(length)[None] < count
    padded = x.masked_fill(~mask.unsqueeze(2), torch.nan)
    query, key, value, log_decay = (part[:, :, :count] for part in mixer.project(x))
    blocks = torch.arange(count) // block
    after = (blocks[:, None, None] >= blocks) & (blocks > blocks[:, None])  # (N, L, positions)
    factors = (log_decay[:, :, None, None] * after).sum(-1).exp()  # (B, H, N, L)
    phi = mixer.feature_map
    weights = phi.queries(query) @ phi.keys(key).mT * (blocks[:, None] >= blocks) * factors
    wanted = mixer.join(weights @ value / (weights.sum(-1, keepdim=True) + mixer.eps))
    torch.testing.assert_close(mixer(padded, lengths)[:, :count], wanted)
    torch.testing.assert_close(mixer(padded.nan_to_num(3.0), None, mask)[:, :count], wanted)


@pytest.mark.parametrize(
    ("attention", "block"), [(Linear(), 2), (Softmax(past_size=2), 2), (Linear(window_size=3), 1)]
)
def test_a_batch_of_no_rows_has_outputs_of_no_rows(attention: Linear | Softmax, block: int) -> None:
    model = Transformer(TransformerConfig(1, 2, 4, 8, attention=attention, causal_block=block))
    x = torch.zeros(0, 5, 8)
    assert model(x).shape == x.shape
    if block == 1:
        outputs, state = model.prefill(x)
        assert outputs.shape == x.shape and model.step(x[:, 0], state)[0].shape == (0, 8)
