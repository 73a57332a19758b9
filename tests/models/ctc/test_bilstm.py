"""The Bi-LSTM reads each row as if it stood alone, its loss is that of CTC, and it learns."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from linattn_models import CTCBiLSTM, CTCBiLSTMConfig, ctc_greedy, ctc_loss, load, save
from tests.models.ctc.spelling import assert_learns_to_spell, spelled

FEATURES = 5
PHONES = 4


def tiny(**fields: Any) -> CTCBiLSTM:
    """In float64, where equalities that hold to rounding hold to 1e-9."""
    shape = {"num_features": FEATURES, "num_layers": 2, "hidden_dim": 6, **fields}
    return CTCBiLSTM(CTCBiLSTMConfig(PHONES, **shape)).double().eval()


def frames_of(batch: int, length: int) -> Tensor:
    return torch.randn(batch, length, FEATURES, dtype=torch.float64)


def test_the_paper_s_shape_is_the_default() -> None:
    model = CTCBiLSTM(CTCBiLSTMConfig(num_phones=72))
    assert (model.lstm.num_layers, model.lstm.hidden_size, model.lstm.bidirectional) == (
        3,
        320,
        True,
    )
    out = model(torch.randn(2, 7, 40))
    assert out.shape == (2, 7, 73)
    torch.testing.assert_close(out.exp().sum(-1), torch.ones(2, 7))


@pytest.mark.parametrize("lengths", [[7, 7, 7], [7, 3, 1], [1, 4, 5]])
def test_padded_equals_alone(lengths: list[int]) -> None:
    model, frames = tiny(), frames_of(3, 7).requires_grad_()
    weights = torch.randn(3, 7, PHONES + 1, dtype=torch.float64)
    parameters = [frames, *model.parameters()]
    rows = range(len(lengths))

    together = model(frames, torch.tensor(lengths))
    alone = [model(frames[row : row + 1, : lengths[row]])[0] for row in rows]
    for row in rows:
        torch.testing.assert_close(together[row, : lengths[row]], alone[row], rtol=0, atol=1e-12)

    within = torch.arange(7) < torch.tensor(lengths)[:, None]
    weighted = (together * weights)[within].sum()
    separately = torch.stack([(alone[r] * weights[r, : lengths[r]]).sum() for r in rows]).sum()
    found = torch.autograd.grad(weighted, parameters)
    expected = torch.autograd.grad(separately, parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-10)
    assert not found[0][~within].any()


@pytest.mark.parametrize("lengths", [[13, 13], [13, 4], [1, 10]])
def test_padded_equals_alone_behind_the_convolutions(lengths: list[int]) -> None:
    model, frames = tiny(subsampling=4, channels=3), frames_of(2, 13)
    outputs = model.output_lengths(torch.tensor(lengths)).tolist()
    together = model(frames, torch.tensor(lengths))
    assert together.shape == (2, 4, PHONES + 1) and outputs == [-(-n // 4) for n in lengths]
    for row, (length, output) in enumerate(zip(lengths, outputs, strict=True)):
        alone = model(frames[row : row + 1, :length])[0]
        torch.testing.assert_close(together[row, :output], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("subsampling", [1, 4])
def test_padding_is_never_read(subsampling: int) -> None:
    model, frames = tiny(subsampling=subsampling), frames_of(2, 6)
    lengths = torch.tensor([6, 2])
    before = model(frames, lengths)
    frames[1, 2:] = torch.nan
    assert torch.equal(model(frames, lengths), before)


def test_past_a_row_s_length_the_blank_is_certain() -> None:
    model, frames, lengths = tiny(), frames_of(3, 9), torch.tensor([9, 2, 5])
    out = model(frames, lengths)
    certain = torch.tensor([0.0] + PHONES * [-torch.inf], dtype=torch.float64)
    assert torch.equal(out[1, 2:], certain.expand(7, -1))
    assert ctc_greedy(out) == ctc_greedy(out, lengths)


def test_reads_both_ways() -> None:
    model, frames = tiny(), frames_of(1, 6)
    before = model(frames)
    for changed, seen in ((5, 0), (0, 5)):
        other = frames.clone()
        other[0, changed] += 1
        assert not torch.equal(model(other)[0, seen], before[0, seen])


@pytest.mark.parametrize("lengths", [None, torch.tensor([6])])
def test_dropout_acts_in_training_mode_alone(lengths: Tensor | None) -> None:
    model, frames = tiny(dropout=0.5), frames_of(1, 6)
    assert torch.equal(model(frames, lengths), model(frames, lengths))
    assert not torch.equal(model.train()(frames, lengths), model(frames, lengths))


@given(st.data())
def test_greedy_spells_the_likeliest_path(data: st.DataObject) -> None:
    length = data.draw(st.integers(0, 8))
    labels = st.lists(st.integers(0, 3), min_size=length, max_size=length)
    paths = data.draw(st.lists(labels, min_size=1, max_size=3))
    lengths = [data.draw(st.integers(0, length)) for _ in paths]
    chosen = torch.tensor(paths, dtype=torch.int64).view(len(paths), length)
    scores = torch.nn.functional.one_hot(chosen, 4)
    assert ctc_greedy(scores) == [spelled(path) for path in paths]
    cut = [spelled(path[:kept]) for path, kept in zip(paths, lengths, strict=True)]
    assert ctc_greedy(scores, torch.tensor(lengths)) == cut


def by_definition(log_probabilities: Tensor, phones: list[int]) -> Tensor:
    """-log of the sum over every path that spells the phones: (T, C) and the phones."""
    frames, classes = log_probabilities.shape
    paths = itertools.product(range(classes), repeat=frames)
    chosen = [torch.tensor(path) for path in paths if spelled(path) == phones]
    scores = [log_probabilities[torch.arange(frames), path].sum() for path in chosen]
    return -torch.logsumexp(torch.stack(scores), 0)


def test_loss_is_the_sum_over_all_paths() -> None:
    phones, lengths = [[1, 1], [2], []], [4, 3, 2]
    out = torch.randn(3, 4, 3, dtype=torch.float64).log_softmax(-1).requires_grad_()
    targets = torch.tensor([[1, 1], [2, 99], [-7, 0]])  # past a length stands anything
    target_lengths = torch.tensor([len(row) for row in phones])
    rows = [by_definition(out[r, : lengths[r]], phones[r]) for r in range(3)]
    nats = [row / max(1, len(spelt)) for row, spelt in zip(rows, phones, strict=True)]
    expected = torch.stack(nats).mean()
    found = ctc_loss(out, torch.tensor(lengths), targets, target_lengths)
    torch.testing.assert_close(found, expected)


def test_loss_of_padded_rows_is_the_mean_of_rows_alone() -> None:
    model, frames = tiny(), frames_of(3, 8)
    lengths, target_lengths = torch.tensor([8, 3, 5]), torch.tensor([3, 1, 2])
    targets = torch.tensor([[1, 1, 2], [4, 0, 0], [3, 2, 0]])
    together = model.loss(frames, lengths, targets, target_lengths)
    alone = [
        model.loss(
            frames[r : r + 1, : lengths[r]],
            None,
            targets[r : r + 1, : target_lengths[r]],
            target_lengths[r : r + 1],
        )
        for r in range(3)
    ]
    expected = torch.stack(alone).mean()
    torch.testing.assert_close(together, expected)
    parameters = list(model.parameters())
    gradients = (torch.autograd.grad(loss, parameters) for loss in (together, expected))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_learns_to_spell() -> None:
    model = CTCBiLSTM(CTCBiLSTMConfig(PHONES, FEATURES, num_layers=2, hidden_dim=16))
    assert_learns_to_spell(model, FEATURES, PHONES, steps=150)


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    model = tiny(dropout=0.1)
    save(model, tmp_path / "model", extra={"corpus": "noise"})
    loaded = load(tmp_path / "model")
    assert isinstance(loaded, CTCBiLSTM) and not loaded.training
    assert loaded.to_dict() == model.to_dict()
    frames, lengths = frames_of(2, 6), torch.tensor([6, 3])
    assert torch.equal(loaded(frames, lengths), model(frames, lengths))


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
def test_configurations_that_cannot_be_are_refused(fields: dict[str, Any], named: str) -> None:
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
        tiny()(frames, lengths)


@pytest.mark.parametrize(
    ("targets", "target_lengths", "named"),
    [
        ([[1, 5], [1, 2]], [2, 2], "1 to 5"),
        ([[0, 2], [1, 2]], [2, 2], "0 to 2"),
        ([[1, 2], [1, 2]], [2, 3], "target_lengths"),
        ([[1, 2]], [2, 2], "targets"),
        ([[1.0, 2.0], [1.0, 2.0]], [2, 2], "targets"),
        (
            [[1, 2, 3, 4, 1], [1, 2, 3, 4, 1]],
            [4, 5],
            "row 1",
        ),
        ([[1, 1, 1], [1, 2, 3]], [3, 3], "row 0"),
    ],
)
def test_targets_that_cannot_be_are_refused(
    targets: list[list[float]], target_lengths: list[int], named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        tiny().loss(FRAMES, None, torch.tensor(targets), torch.tensor(target_lengths))


def test_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="phone"):
        ctc_greedy(torch.zeros(2, 3))
