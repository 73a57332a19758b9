"""The CTC transformer reads each row as if it stood alone, whatever its attention and layers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import (
    CTCTransformer,
    CTCTransformerConfig,
    Lsh,
    TransformerConfig,
    ctc_frames_needed,
    ctc_greedy,
    load,
    save,
)
from linattn_models.attention import Attention
from tests.models.ctc.spelling import assert_learns_to_spell

FEATURES = 6
PHONES = 4
ATTENTIONS: list[Attention | str] = ["linear", "softmax", Lsh(rounds=2, buckets=4, chunk=3)]

every_attention = pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
every_front = pytest.mark.parametrize("subsampling", [1, 4])
every_kernel = pytest.mark.parametrize("kernel", [0, 5])


def tiny_config(attention: Attention | str = "linear", **fields: Any) -> CTCTransformerConfig:
    transformer = TransformerConfig(2, 2, 4, 12, attention=attention, is_causal=False)
    sizes = {"transformer": transformer, "num_features": FEATURES, "channels": 3}
    return CTCTransformerConfig(PHONES, **{**sizes, **fields})


def tiny(attention: Attention | str = "linear", **fields: Any) -> CTCTransformer:
    """In float64, where equalities that hold to rounding hold to 1e-9."""
    return CTCTransformer(tiny_config(attention, **fields)).double().eval()


def frames_of(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, FEATURES, dtype=torch.float64)


def test_the_paper_s_shape_is_the_default() -> None:
    model = CTCTransformer(CTCTransformerConfig(num_phones=72))
    transformer = model.config.transformer
    assert (transformer.num_layers, transformer.num_heads, transformer.head_dim) == (9, 6, 32)
    out = model(torch.randn(2, 7, 40))
    assert out.shape == (2, 7, 73)
    torch.testing.assert_close(out.exp().sum(-1), torch.ones(2, 7))


@every_attention
@every_front
@every_kernel
@settings(max_examples=15)
@given(data=st.data())
def test_padding_never_changes_an_output(
    attention: Attention | str, subsampling: int, kernel: int, data: st.DataObject
) -> None:
    torch.manual_seed(0)
    model = tiny(attention, subsampling=subsampling, depthwise_kernel=kernel)
    lengths = torch.tensor(data.draw(st.lists(st.integers(1, 21), min_size=1, max_size=3)))
    length = int(lengths.max()) + data.draw(st.integers(0, 9))
    frames = frames_of(len(lengths), length)
    alone = [model(frames[r : r + 1, :n])[0] for r, n in enumerate(lengths.tolist())]
    frames[torch.arange(length) >= lengths[:, None]] = torch.nan
    together = model(frames, lengths)
    for row, (n, expected) in enumerate(
        zip(model.output_lengths(lengths).tolist(), alone, strict=True)
    ):
        assert expected.shape[0] == n
        torch.testing.assert_close(together[row, :n], expected, rtol=0, atol=1e-10)
        assert torch.equal(together[row, n:, 0], torch.zeros(together.shape[1] - n).double())
        assert (together[row, n:, 1:] == -torch.inf).all()


@every_attention
@every_front
@every_kernel
def test_gradients_of_padded_rows_are_those_of_rows_alone(
    attention: Attention | str, subsampling: int, kernel: int
) -> None:
    model = tiny(attention, subsampling=subsampling, depthwise_kernel=kernel)
    lengths, counts = torch.tensor([19, 9, 14]), torch.tensor([3, 1, 2])
    phones = torch.tensor([[1, 1, 2], [4, 0, 0], [3, 2, 0]])
    frames = frames_of(3, 19)
    losses = [
        model.loss(frames[r : r + 1, : lengths[r]], None, phones[r : r + 1], counts[r : r + 1])
        for r in range(3)
    ]
    padded = frames.clone()
    padded[torch.arange(19) >= lengths[:, None]] = torch.nan
    together = model.loss(padded.requires_grad_(), lengths, phones, counts)
    mean, parameters = torch.stack(losses).mean(), list(model.parameters())
    torch.testing.assert_close(together, mean)
    together.backward()
    for parameter, expected in zip(parameters, torch.autograd.grad(mean, parameters), strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=0, atol=1e-9)
    assert padded.grad is not None and padded.grad.isfinite().all()


@pytest.mark.parametrize(("subsampling", "expected"), [(1, [1, 3, 4, 5]), (4, [1, 1, 1, 2])])
def test_output_lengths(subsampling: int, expected: list[int]) -> None:
    lengths = torch.tensor([1, 3, 4, 5])
    model = tiny(subsampling=subsampling)
    assert model.output_lengths(lengths).tolist() == expected
    assert [model(frames_of(1, n)).shape[1] for n in lengths.tolist()] == expected


def test_it_sees_all_frames_and_their_order() -> None:
    model, frames = tiny(), frames_of(1, 6)
    before = model(frames)
    for changed in range(6):
        other = frames.clone()
        other[0, changed] += 1
        assert (model(other) != before).any(-1).all(), changed
    assert not torch.allclose(model(frames.flip(1)).flip(1), before)


@every_attention
def test_inside_autocast_sums_stay_in_float32(attention: Attention | str) -> None:
    model, frames = tiny(attention, subsampling=4, depthwise_kernel=3).float(), frames_of(2, 9)
    seen: list[torch.dtype] = []
    model.transformer.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(frames.float())
    assert seen == [torch.float32] and out.dtype == torch.float32
    torch.testing.assert_close(out, model(frames.float()), rtol=0, atol=0.2)
    assert model.bfloat16()(frames.bfloat16()).dtype == torch.bfloat16


def test_learns_to_spell() -> None:
    torch.manual_seed(0)
    model = CTCTransformer(tiny_config(depthwise_kernel=5))
    assert_learns_to_spell(model, FEATURES, PHONES, steps=150)


def test_greedy_is_that_of_the_log_probabilities() -> None:
    model, frames, lengths = tiny(subsampling=4), frames_of(3, 33), torch.tensor([33, 2, 20])
    expected = ctc_greedy(model(frames, lengths), model.output_lengths(lengths))
    assert model.greedy(frames, lengths) == expected


def test_a_transcript_longer_than_its_frames_is_counted_and_refused() -> None:
    model, frames = tiny(subsampling=4), frames_of(2, 12)
    phones, counts, lengths = (
        torch.tensor([[1, 2, 3, 4], [2, 2, 1, 1]]),
        torch.tensor([3, 3]),
        torch.tensor([12, 12]),
    )
    assert ctc_frames_needed(phones, counts).tolist() == [3, 4]
    assert model.output_lengths(lengths).tolist() == [3, 3]
    model.loss(frames[:1], lengths[:1], phones[:1], counts[:1])
    with pytest.raises(ValueError, match="row 1"):
        model.loss(frames, lengths, phones, counts)


@every_attention
@every_front
@every_kernel
def test_saved_and_loaded_it_is_the_same(
    attention: Attention | str, subsampling: int, kernel: int, tmp_path: Path
) -> None:
    model = tiny(attention, subsampling=subsampling, depthwise_kernel=kernel)
    frames, lengths = frames_of(2, 9), torch.tensor([9, 3])
    save(model, tmp_path / "model", extra={"corpus": "noise"})
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, CTCTransformer) and not loaded.training
    assert loaded.config == model.config
    assert torch.equal(loaded(frames, lengths), model(frames, lengths))


CAUSAL = TransformerConfig(1, 1, 2, 4).to_dict()


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_phones": 0}, "num_phones"),
        ({"subsampling": 2}, "subsampling"),
        ({"subsampling": True}, "subsampling"),
        ({"depthwise_kernel": 4}, "depthwise_kernel"),
        ({"depthwise_kernel": -1}, "depthwise_kernel"),
        ({"channels": 0}, "channels"),
        ({"transformer": CAUSAL}, "transformer"),
        ({"transformer": []}, "transformer"),
        ({"depthwise": 3}, "depthwise"),
    ],
)
def test_configurations_that_cannot_be_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CTCTransformerConfig.from_dict({**tiny_config().to_dict(), **fields})


def test_the_transformer_is_a_configuration() -> None:
    with pytest.raises(ValueError, match="transformer"):
        dataclasses.replace(tiny_config(), transformer=None)
