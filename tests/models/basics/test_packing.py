"""Packed rows are the real positions of padded ones; a packed prefill gives each row its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models.basics.packing import Packing, last_of
from tests.models.tiny import (
    MAX_LENGTH,
    STEPPING,
    random_tokens,
    same_row,
    tiny_model,
    tiny_transformer,
)

LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4)
# What prefill passes packed to the attention, and what it passes padded.
MODELS: dict[str, dict[str, Any]] = {
    "linear": {},
    "norms of sums": {"norm_first": False},
    "grouped": {"num_heads": 4, "num_kv_heads": 2},
    "fixed decay": {"decay": "fixed"},
    "learned decay": {"decay": "learned"},
    "gated decay": {"decay": "gated"},
    "a map of all features": {"feature_map": "hedgehog"},
    "gated": {"norm": "rms", "ffn": "swiglu", "bias": False},
    "rotary": {"rotary": True, "num_heads": 4, "num_kv_heads": 2},
    "rotary softmax": {"attention": "softmax", "rotary": True},
    "softmax": {"attention": "softmax"},
    "grouped softmax": {"attention": "softmax", "num_heads": 4, "num_kv_heads": 2},
    "window": {"attention": "windowed"},
    "window, gated decay": {"attention": "windowed", "decay": "gated"},
}
models = pytest.mark.parametrize("fields", MODELS.values(), ids=MODELS.keys())


@given(lengths=LENGTHS, longer=st.integers(0, 2))
def test_packing_leaves_out_the_padding_and_unpacking_zeroes_it(
    lengths: list[int], longer: int
) -> None:
    length = max(lengths) + longer
    x = torch.randn(len(lengths), length, 2, 3)
    packing = Packing.of(torch.tensor(lengths, dtype=torch.int32), length)
    packed = packing.pack(x)
    rows = [x[row, :own] for row, own in enumerate(lengths)]
    assert torch.equal(packed, torch.cat(rows).unsqueeze(0))
    padded = packing.unpack(packed)
    for row, own in enumerate(lengths):
        assert torch.equal(padded[row, :own], rows[row])
        assert not padded[row, own:].any()
        assert torch.equal(packing.cu_seqlens[row + 1] - packing.cu_seqlens[row], torch.tensor(own))
        if own:
            assert torch.equal(last_of(packed, packing)[row], rows[row][-1])


@models
@settings(max_examples=20)
@given(lengths=LENGTHS, more=LENGTHS)
def test_each_row_is_itself_alone_and_goes_on_so(
    fields: dict[str, Any], lengths: list[int], more: list[int]
) -> None:
    model = tiny_transformer(**fields)
    more = (more * len(lengths))[: len(lengths)]
    x, y = torch.randn(2, len(lengths), 6, model.config.embed_dim, dtype=torch.float64)
    with torch.no_grad():
        first, state = model.prefill(x, torch.tensor(lengths), max_length=12)
        second, after = model.prefill(y, torch.tensor(more), state.clone())
        last, same = model.prefill_last(y, torch.tensor(more), state)
        for row, (own, new) in enumerate(zip(lengths, more, strict=True)):
            whole = torch.cat([x[row : row + 1, :own], y[row : row + 1, :new]], 1)
            outputs, alone = model.prefill(whole, max_length=12)
            torch.testing.assert_close(first[row, :own], outputs[0, :own])
            torch.testing.assert_close(second[row, :new], outputs[0, own:])
            same_row(after, row, alone)
            if new:
                torch.testing.assert_close(last[row], outputs[0, -1])
        torch.testing.assert_close(same.layers, after.layers)


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@given(blocks=st.lists(st.integers(0, 2), min_size=1, max_size=4), rest=st.integers(0, 1))
def test_blocks_of_positions(attention: str, blocks: list[int], rest: int) -> None:
    model = tiny_transformer(attention, causal_block=2)
    lengths = [2 * count + rest for count in blocks]
    x = torch.randn(len(lengths), 6, 8, dtype=torch.float64)
    y, state = model.prefill(x, torch.tensor(lengths), max_length=6)
    for row, own in enumerate(lengths):
        outputs, alone = model.prefill(x[row : row + 1, :own], max_length=6)
        torch.testing.assert_close(y[row, :own], outputs[0])
        same_row(state, row, alone)


@models
def test_gradients_are_those_of_each_row_alone(fields: dict[str, Any]) -> None:
    model = tiny_transformer(**fields)
    x = torch.randn(3, 5, model.config.embed_dim, dtype=torch.float64, requires_grad=True)
    lengths = [5, 1, 3]
    weights = torch.randn(3, model.config.embed_dim, dtype=torch.float64)
    last, _ = model.prefill_last(x, torch.tensor(lengths), max_length=5)
    together = gradients((last * weights).sum(), model, x)
    rows = [model.prefill(x[i : i + 1, :n], max_length=5)[0][0, -1] for i, n in enumerate(lengths)]
    apart = gradients((torch.stack(rows) * weights).sum(), model, x)
    torch.testing.assert_close(together, apart)
    assert not together[0][1, 1:].any()


def gradients(loss: Tensor, model: torch.nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, [x, *model.parameters()])


@settings(max_examples=40)
@given(
    attention=st.sampled_from(STEPPING),
    positions=st.sampled_from(["learned", "sinusoidal", "none"]),
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    longer=st.integers(0, 1),
)
def test_tokens_after_tokens(
    attention: str, positions: str, lengths: list[int], longer: int
) -> None:
    model = tiny_model(attention, positions=positions)
    count, length = len(lengths), max(lengths) + longer
    first, second = random_tokens(model, count, length), random_tokens(model, count, length)
    own = torch.tensor(lengths)
    with torch.no_grad():
        begun, state = model.prefill(first, own, max_length=MAX_LENGTH)
        goes_on, state = model.prefill(second, own, state)
        for row, n in enumerate(lengths):
            both = torch.cat([first[row, :n], second[row, :n]]).unsqueeze(0)
            alone, after = model.prefill(both, max_length=MAX_LENGTH)
            torch.testing.assert_close(begun[row], model.predict_next(both[:, :n])[0])
            torch.testing.assert_close(goes_on[row], alone[0])
            same_row(state, row, after)
    assert state.parameters is goes_on
