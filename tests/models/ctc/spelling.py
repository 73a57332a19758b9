"""A small task for recognizers: frames of noise with phones in them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch.nn.utils.rnn import pad_sequence

from linattn_models import CTCBiLSTM, CTCTransformer, ctc_greedy


def spelled(path: Sequence[int]) -> list[int]:
    """The phones of a path, by the definition."""
    return [label for label, _ in itertools.groupby(path) if label]


def assert_learns_to_spell(
    model: CTCBiLSTM | CTCTransformer, features: int, phones: int, steps: int
) -> None:
    """Sixteen rows of noise with phones in them, each phone a direction, held for some frames."""
    directions = torch.randn(phones + 1, features)
    directions[0] = 0
    lengths = torch.randint(12, 25, (16,))
    frames, spellings = torch.zeros(16, 24, features), []
    for row, length in enumerate(lengths.tolist()):
        path = torch.randint(phones + 1, (length // 4 + 1,)).repeat_interleave(4)[:length]
        frames[row, :length] = directions[path] + 0.1 * torch.randn(length, features)
        spellings.append(spelled(path.tolist()))
    target_lengths = torch.tensor([len(row) for row in spellings])
    targets = pad_sequence([torch.tensor(p) for p in spellings], batch_first=True)

    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model.loss(frames, lengths, targets, target_lengths)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.05
    assert ctc_greedy(model(frames, lengths), model.output_lengths(lengths)) == spellings
