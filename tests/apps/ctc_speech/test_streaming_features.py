"""Running normalization in pieces is that of the whole; augmentation repeats with the generator."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speech.augment import augment
from speech.running import LONGEST_MEMORY, Prior, RunningNorm

PRIOR = Prior((2.0,) * 40, (4.0,) * 40)


def frames_of(length: int) -> np.ndarray:
    return np.random.default_rng(length).normal(3, 2, (length, 40)).astype(np.float32)


@settings(max_examples=20)
@given(pieces=st.lists(st.integers(0, 2_000), min_size=1, max_size=5))
def test_pieces_are_normalized_as_the_whole(pieces: list[int]) -> None:
    frames = frames_of(sum(pieces))
    norm = RunningNorm(PRIOR)
    parts = [norm(part) for part in np.split(frames, np.cumsum(pieces)[:-1])]
    whole = RunningNorm(PRIOR)(frames)
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-5)


def test_mean_and_variance_are_those_so_far_and_fade() -> None:
    frames = frames_of(50)
    count = PRIOR.frames + 50
    mean = (PRIOR.frames * 2.0 + frames.sum(0)) / count
    square = (PRIOR.frames * 8.0 + np.square(frames).sum(0)) / count
    last = (frames[-1] - mean) / np.sqrt(square - mean**2)
    np.testing.assert_allclose(RunningNorm(PRIOR)(frames)[-1], last, atol=1e-4)
    long = np.concatenate([frames_of(4_000) + 30, frames_of(15_000)])
    again = RunningNorm(PRIOR)(long)[-3_000:]
    assert abs(again.mean()) < 0.2 and LONGEST_MEMORY == 3_000


def test_silence_stays_finite() -> None:
    silence = np.full((5_000, 40), -15.9, np.float32)
    assert np.isfinite(RunningNorm(PRIOR)(silence)).all()


def test_augmented_frames_repeat_and_are_finite() -> None:
    frames = torch.from_numpy(frames_of(60))
    for seed in range(20):
        results = []
        for _ in range(2):
            torch.manual_seed(seed)
            results.append(augment(frames))
        assert torch.equal(results[0][0], results[1][0]) and results[0][1] == results[1][1]
        assert results[0][0].isfinite().all() and 60 <= len(results[0][0]) <= 160
