"""A decoder reads its source through sums that are computed once; steps agree with the whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from linattn_models import AutoregressiveTransformer, EncoderDecoder, compile_decoder, load, save
from tests.models.tiny import tiny_config, tiny_transformer


def model_of(encoder: str = "linear", **fields: Any) -> EncoderDecoder:
    decoder = tiny_config(cross_attention=True, **fields)
    return EncoderDecoder(tiny_config(encoder, is_causal=False), decoder).double().eval()


def vectors(*shape: int) -> Tensor:
    return torch.randn(*shape, 8, dtype=torch.float64)


FIELDS: list[dict[str, Any]] = [
    {},
    {"norm_first": False, "num_kv_heads": 1},
    {"feature_map": "hedgehog", "decay": "learned"},
]


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize("encoder", ["linear", "softmax"])
def test_steps_and_prefills_are_the_whole(encoder: str, fields: dict[str, Any]) -> None:
    model = model_of(encoder, **fields)
    source, target = vectors(2, 5), vectors(2, 6)
    lengths = torch.tensor([5, 3])
    whole = model(source, target, lengths)
    with torch.no_grad():
        memory = model.remember(source, lengths)
        y, state = model.prefill(target[:, :2], memory)
        torch.testing.assert_close(y, whole[:, :2])
        y, state = model.prefill(target[:, 2:4], memory, state=state)
        torch.testing.assert_close(y, whole[:, 2:4])
        for position in (4, 5):
            y, state = model.step(target[:, position], state, memory)
            torch.testing.assert_close(y, whole[:, position])


def test_a_memory_has_a_size_of_its_own_and_forks_like_a_state() -> None:
    model = model_of()
    target = vectors(2, 3)
    long, short = vectors(2, 50), vectors(2, 1)
    sizes = [sum(x.nbytes for x in model.remember(source)) for source in (long, short)]
    assert sizes[0] == sizes[1]
    rows = torch.tensor([1, 0])
    swapped = tuple(sums.index_select(rows) for sums in model.remember(long))
    y, _ = model.prefill(target[rows], swapped)
    torch.testing.assert_close(y, model(long, target)[rows])


def test_the_source_is_seen_whole_and_its_padding_is_not() -> None:
    model = model_of()
    source, target = vectors(1, 5).requires_grad_(), vectors(1, 4)
    out = model(source, target, torch.tensor([3]))
    (gradient,) = torch.autograd.grad((out[0, 0] * torch.randn(8)).sum(), source)
    assert (gradient[0, :3].abs() > 1e-9).all() and (gradient[0, 3:] == 0).all()
    torch.testing.assert_close(out, model(source[:, :3], target))


def test_round_trips(tmp_path: Path) -> None:
    model = model_of(num_kv_heads=1, decay="fixed")
    save(model, tmp_path / "model")
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, EncoderDecoder) and loaded.to_dict() == model.to_dict()
    source, target = vectors(1, 3), vectors(1, 2)
    assert torch.equal(loaded(source, target), model(source, target))


CROSS = tiny_config(cross_attention=True)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: EncoderDecoder(tiny_config(), CROSS), "is_causal"),
        (lambda: EncoderDecoder(tiny_config(is_causal=False), tiny_config()), "the decoder"),
        (lambda: EncoderDecoder(tiny_config(is_causal=False, head_dim=5), CROSS), "embed_dim"),
        (lambda: tiny_config("softmax", cross_attention=True), "linear attention"),
        (lambda: tiny_config(cross_attention=1), "cross_attention"),
        (lambda: AutoregressiveTransformer(CROSS, 7, 9), "cross_attention"),
        (lambda: tiny_transformer().remember(vectors(1, 2)), "a memory"),
        (lambda: tiny_transformer()(vectors(1, 2), memory=()), "memory"),
        (lambda: model_of().decoder(vectors(2, 2)), "memory"),
        (
            lambda: model_of().decoder(vectors(2, 2), memory=model_of().remember(vectors(3, 4))),
            "2 sequences",
        ),
        (lambda: model_of().prefill(vectors(2, 2), [1]), "memory"),
        (lambda: model_of().prefill(vectors(2, 2), 3), "memory"),
        (lambda: model_of().prefill(vectors(2, 2), "ab"), "memory"),
        (lambda: model_of().remember(vectors(1, 2)[..., :7]), "shape"),
        (lambda: compile_decoder(model_of().float().decoder), "cross-attention"),
    ],
)
def test_refuses_what_cannot_be_right(call: Any, named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        call()
