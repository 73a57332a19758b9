"""A decoder reads its source through sums that are computed once; steps agree with the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import AutoregressiveTransformer, Transformer, compile_decoder
from tests.models.tiny import tiny_config, tiny_transformer, vectors


def pair(encoder: str = "linear", **fields: Any) -> tuple[Transformer, Transformer]:
    """An encoder, and a decoder that attends to what it returns."""
    decoder = tiny_transformer(cross_attention=True, **fields)
    return tiny_transformer(encoder, is_causal=False), decoder


FIELDS: list[dict[str, Any]] = [
    {},
    {"norm_first": False, "num_kv_heads": 1},
    {"feature_map": "hedgehog", "decay": "learned"},
]


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("kind", ["linear", "softmax"])
def test_steps_and_prefills_are_the_whole(kind: str, fields: dict[str, Any]) -> None:
    encoder, decoder = pair(kind, **fields)
    source, target = vectors(2, 5), vectors(2, 6)
    lengths = torch.tensor([5, 3])
    with torch.no_grad():
        memory = decoder.remember(encoder(source, lengths), lengths)
        whole = decoder(target, memory=memory)
        y, state = decoder.prefill(target[:, :2], memory=memory)
        torch.testing.assert_close(y, whole[:, :2])
        y, state = decoder.prefill(target[:, 2:4], state=state, memory=memory)
        torch.testing.assert_close(y, whole[:, 2:4])
        for position in (4, 5):
            y, state = decoder.step(target[:, position], state, memory)
            torch.testing.assert_close(y, whole[:, position])


@given(lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4))
def test_packed_rows_read_their_own_memory(lengths: list[int]) -> None:
    _, decoder = pair()
    source, target = vectors(len(lengths), 3), vectors(len(lengths), 5)
    with torch.no_grad():
        memory = decoder.remember(source)
        y, _ = decoder.prefill(target, torch.tensor(lengths), memory=memory)
        last, _ = decoder.prefill_last(target, torch.tensor(lengths), memory=memory)
        for row, own in enumerate(lengths):
            rows = slice(row, row + 1)
            alone, _ = decoder.prefill(target[rows, :own], memory=decoder.remember(source[rows]))
            torch.testing.assert_close(y[row, :own], alone[0])
            torch.testing.assert_close(last[rows], alone[:, -1])


CROSS = tiny_config(cross_attention=True)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda _: tiny_config("softmax", cross_attention=True), "linear attention"),
        (lambda _: tiny_config(cross_attention=1), "cross_attention"),
        (lambda _: AutoregressiveTransformer(CROSS, 7, 9), "cross_attention"),
        (lambda _: tiny_transformer().remember(vectors(1, 2)), "a memory"),
        (lambda _: tiny_transformer()(vectors(1, 2), memory=()), "memory"),
        (lambda m: m(vectors(2, 2)), "memory"),
        (lambda m: m(vectors(2, 2), memory=m.remember(vectors(3, 4))), "2 sequences"),
        (lambda m: m.prefill(vectors(2, 2), memory=[1]), "memory"),
        (lambda m: m.prefill(vectors(2, 2), memory=3), "memory"),
        (lambda m: m.prefill(vectors(2, 2), memory="ab"), "memory"),
        (lambda m: m.remember(vectors(1, 2)[..., :7]), "shape"),
        (lambda m: compile_decoder(m.float()), "cross-attention"),
    ],
)
def test_refuses_what_cannot_be_right(call: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        call(pair()[1])
