"""Batches of similar lengths: bounded, complete, and decided by seed and step alone."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from speech.batches import (
    LengthOrder,
    Speech,
    find_fault,
    mask_bands,
)

lengths = st.lists(st.integers(1, 60), min_size=1, max_size=40)


@given(lengths=lengths, epoch=st.integers(0, 3))
def test_an_epoch_has_each_utterance_once_in_bounded_batches(
    lengths: list[int], epoch: int
) -> None:
    batches = LengthOrder(lengths, 4, 100, seed=0).epoch(epoch)
    assert torch.cat(batches).sort().values.tolist() == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[place] for place in batch.tolist())
        assert len(batch) == 1 or (len(batch) <= 4 and longest * len(batch) <= 100)


def test_the_first_epoch_is_from_short_to_long_and_later_ones_are_not() -> None:
    draws = torch.randint(10, 1_000, (200,)).tolist()
    order = LengthOrder(draws, 8, 4_000, seed=0)
    first, second = ([draws[int(batch[0])] for batch in order.epoch(e)] for e in (0, 1))
    assert first == sorted(first)
    assert second != sorted(second)


@given(lengths=lengths, steps=st.lists(st.integers(0, 60), min_size=1))
def test_a_batch_depends_on_nothing_but_seed_and_step(lengths: list[int], steps: list[int]) -> None:
    walked = LengthOrder(lengths, 4, 100, seed=1)
    for step in steps:
        fresh = LengthOrder(lengths, 4, 100, seed=1).indices(step)
        assert torch.equal(walked.indices(step), fresh)


def test_a_batch_is_padded_and_says_how_far() -> None:
    frames = [[np.full((n, 40), n, np.float16)] for n in (3, 5)]
    batch = Speech(frames, [[1, 2], [3]]).batch(torch.tensor([1, 0]))
    assert batch["frames"].shape == (2, 5, 40) and batch["frames"].dtype == torch.float32
    assert batch["lengths"].tolist() == [5, 3]
    assert batch["frames"][1, 3:].eq(0).all()
    assert batch["targets"].tolist() == [[3, 0], [1, 2]]
    assert batch["target_lengths"].tolist() == [1, 2]


def test_speeds_and_masks_repeat_with_the_generator() -> None:
    frames = [[np.ones((n, 40), np.float16) for n in (30, 33, 27)]] * 4
    data = Speech(frames, [[1]] * 4, masked=True)
    state = torch.get_rng_state()
    first = data.batch(torch.arange(4))
    torch.set_rng_state(state)
    again = data.batch(torch.arange(4))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert len(set(first["lengths"].tolist())) > 1


def test_masks_are_bands_of_a_copy() -> None:
    frames = torch.ones(100, 40)
    masked = mask_bands(frames)
    assert frames.eq(1).all() and 0 < masked.eq(0).sum() < masked.numel()


def test_what_ctc_cannot_align_has_a_reason() -> None:
    assert find_fault([40], [1, 2], 4, 100) is None
    assert find_fault([40, 8], [1, 1], 4, 100) == (
        "more labels than frames",
        "3 frames for 2 labels",
        2,
    )
    reason, *_ = find_fault([400], [1], 4, 100) or [""]
    assert reason == "more than 100 frames"
