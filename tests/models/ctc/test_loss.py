"""The greedy spelling and the loss of CTC are those of their definitions."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import ctc_greedy, ctc_loss
from tests.models.ctc.test_alignment import every_path, spelled, total


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


def test_loss_is_the_sum_over_all_paths() -> None:
    phones, lengths = [[1, 1], [2], []], [4, 3, 2]
    out = torch.randn(3, 4, 3, dtype=torch.float64).log_softmax(-1)
    targets = torch.tensor([[1, 1], [2, 99], [-7, 0]])  # past a length stands anything
    target_lengths = torch.tensor([len(row) for row in phones])
    nats = [
        -total(every_path(row[:length].numpy())[tuple(spelt)]) / max(1, len(spelt))
        for row, length, spelt in zip(out, lengths, phones, strict=True)
    ]
    found = ctc_loss(out, torch.tensor(lengths), targets, target_lengths)
    torch.testing.assert_close(found.item(), sum(nats) / 3)


@pytest.mark.parametrize(
    ("targets", "target_lengths", "named"),
    [
        ([[1, 5], [1, 2]], [2, 2], "1 to 5"),
        ([[0, 2], [1, 2]], [2, 2], "0 to 2"),
        ([[1, 2], [1, 2]], [2, 3], "target_lengths"),
        ([[1, 2]], [2, 2], "targets"),
        ([[1.0, 2.0], [1.0, 2.0]], [2, 2], "targets"),
        ([[1, 2, 3, 4, 1], [1, 2, 3, 4, 1]], [4, 5], "row 1"),
        ([[1, 1, 1], [1, 2, 3]], [3, 3], "row 0"),
    ],
)
def test_targets_that_cannot_be_are_refused(
    targets: list[list[float]], target_lengths: list[int], named: str
) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        ctc_loss(
            torch.zeros(2, 4, 5), torch.tensor([4, 4]),
            torch.tensor(targets), torch.tensor(target_lengths),
        )  # fmt: skip


def test_no_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="phone"):
        ctc_greedy(torch.zeros(2, 3))
