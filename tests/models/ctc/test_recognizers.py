"""A recognizer reads each row as if it stood alone, whatever its layers; it learns and is saved."""

from __future__ import annotations

import dataclasses
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import (
    CTCBiLSTM,
    CTCBiLSTMConfig,
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

FEATURES = 6
PHONES = 4
ATTENTIONS: list[Attention | str] = ["linear", "softmax", Lsh(rounds=2, buckets=4, chunk=3)]
# The attention, or the Bi-LSTM, and the kernel of the transformer's depthwise convolutions.
KINDS: list[tuple[Any, int]] = [*product(ATTENTIONS, (0, 5)), ("bilstm", 0)]

every_attention = pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
every_front = pytest.mark.parametrize("subsampling", [1, 4])
every_kind = pytest.mark.parametrize(("kind", "kernel"), KINDS, ids=str)


def tiny_config(attention: Attention | str = "linear", **fields: Any) -> CTCTransformerConfig:
    transformer = TransformerConfig(2, 2, 4, 12, attention=attention, is_causal=False)
    sizes = {"transformer": transformer, "num_features": FEATURES, "channels": 3}
    return CTCTransformerConfig(PHONES, **{**sizes, **fields})


def tiny_bilstm(**fields: Any) -> CTCBiLSTM:
    sizes = {"num_layers": 2, "hidden_dim": 6, "channels": 3, **fields}
    return CTCBiLSTM(CTCBiLSTMConfig(PHONES, num_features=FEATURES, **sizes)).double().eval()


def tiny(kind: Any = "linear", kernel: int = 0, **fields: Any) -> CTCTransformer | CTCBiLSTM:
    """In float64, where equalities that hold to rounding hold to 1e-9."""
    if kind == "bilstm":
        return tiny_bilstm(**fields)
    config = tiny_config(kind, depthwise_kernel=kernel, **fields)
    return CTCTransformer(config).double().eval()


def frames_of(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, FEATURES, dtype=torch.float64)


def test_the_paper_s_shapes_are_the_defaults() -> None:
    model = CTCTransformer(CTCTransformerConfig(num_phones=72))
    transformer = model.config.transformer
    assert (transformer.num_layers, transformer.num_heads, transformer.head_dim) == (9, 6, 32)
    bilstm = CTCBiLSTM(CTCBiLSTMConfig(num_phones=72))
    assert (bilstm.lstm.num_layers, bilstm.lstm.hidden_size) == (3, 320)
    for recognizer in (model, bilstm):
        out = recognizer(torch.randn(2, 7, 40))
        assert out.shape == (2, 7, 73)
        torch.testing.assert_close(out.exp().sum(-1), torch.ones(2, 7))


@every_kind
@settings(max_examples=15)
@given(data=st.data(), subsampling=st.sampled_from([1, 4]))
def test_padding_never_changes_an_output(
    kind: Any, kernel: int, data: st.DataObject, subsampling: int
) -> None:
    torch.manual_seed(0)
    model = tiny(kind, kernel, subsampling=subsampling)
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


@every_kind
@every_front
def test_gradients_of_padded_rows_are_those_of_rows_alone(
    kind: Any, kernel: int, subsampling: int
) -> None:
    model = tiny(kind, kernel, subsampling=subsampling)
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


@pytest.mark.parametrize("kind", ["linear", "bilstm"])
def test_it_sees_all_frames_and_their_order(kind: str) -> None:
    model, frames = tiny(kind), frames_of(1, 6)
    before = model(frames)
    for changed in range(6):
        other = frames.clone()
        other[0, changed] += 1
        assert (model(other) != before).any(-1).all(), changed
    assert not torch.allclose(model(frames.flip(1)).flip(1), before)


@every_attention
def test_inside_autocast_sums_stay_in_float32(attention: Attention | str) -> None:
    model, frames = tiny(attention, 3, subsampling=4).float(), frames_of(2, 9)
    seen: list[torch.dtype] = []
    model.transformer.norm.register_forward_pre_hook(lambda _, args: seen.append(args[0].dtype))
    with torch.autocast("cpu", torch.bfloat16):
        out = model(frames.float())
    assert seen == [torch.float32] and out.dtype == torch.float32
    torch.testing.assert_close(out, model(frames.float()), rtol=0, atol=0.2)
    assert model.bfloat16()(frames.bfloat16()).dtype == torch.bfloat16


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
    rows = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 2, 0], [1, 1, 0], [2, 2, 2]])
    assert ctc_frames_needed(rows, torch.tensor([0, 1, 2, 2, 3])).tolist() == [0, 1, 2, 3, 5]
    assert model.output_lengths(lengths).tolist() == [3, 3]
    model.loss(frames[:1], lengths[:1], phones[:1], counts[:1])
    with pytest.raises(ValueError, match="row 1"):
        model.loss(frames, lengths, phones, counts)


@every_kind
def test_saved_and_loaded_it_is_the_same(kind: Any, kernel: int, tmp_path: Path) -> None:
    model = tiny(kind, kernel, subsampling=4)
    frames, lengths = frames_of(2, 9), torch.tensor([9, 3])
    save(model, tmp_path / "model", extra={"corpus": "noise"})
    loaded = load(tmp_path / "model")
    assert type(loaded) is type(model) and not loaded.training
    assert loaded.to_dict() == model.to_dict()
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
def test_transformers_that_cannot_be_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CTCTransformerConfig.from_dict({**tiny_config().to_dict(), **fields})


def test_the_transformer_is_a_configuration() -> None:
    with pytest.raises(TypeError, match="transformer"):
        dataclasses.replace(tiny_config(), transformer=None)


@pytest.mark.parametrize("lengths", [None, torch.tensor([6])])
def test_dropout_acts_in_training_mode_alone(lengths: Tensor | None) -> None:
    model, frames = tiny_bilstm(dropout=0.5), frames_of(1, 6)
    assert torch.equal(model(frames, lengths), model(frames, lengths))
    assert not torch.equal(model.train()(frames, lengths), model(frames, lengths))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"num_phones": 0}, "num_phones"),
        ({"num_phones": 3, "num_layers": 0}, "num_layers"),
        ({"num_phones": 3, "hidden_dim": 1.5}, "hidden_dim"),
        ({"num_phones": 3, "num_features": True}, "num_features"),
        ({"num_phones": 3, "dropout": 1.0}, "dropout"),
        ({"num_phones": 3, "subsampling": 2}, "subsampling"),
        ({"num_phones": 3, "dropout": 0.1, "num_layers": 1}, "dropout"),
        ({}, "num_phones"),
        ({"num_phones": 3, "layers": 3}, "layers"),
    ],
)
def test_bilstms_that_cannot_be_are_refused(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CTCBiLSTMConfig.from_dict(fields)


FRAMES = torch.zeros(2, 4, FEATURES, dtype=torch.float64)


@pytest.mark.parametrize(
    ("frames", "lengths", "named"),
    [
        (FRAMES[0], None, "shape"),
        (FRAMES[..., :3], None, "shape"),
        (FRAMES[:, :0], None, "frame"),
        (FRAMES[:0], None, "row"),
        (FRAMES.long(), None, "int64"),
        (FRAMES.float(), None, "float32"),
        (FRAMES, torch.tensor([4, 0]), "lengths"),
        (FRAMES, torch.tensor([5, 4]), "lengths"),
        (FRAMES, torch.tensor([4]), "lengths"),
        (FRAMES, torch.tensor([4.0, 4.0]), "lengths"),
    ],
)
def test_frames_that_cannot_be_are_refused(
    frames: Tensor, lengths: Tensor | None, named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        tiny("bilstm")(frames, lengths)
