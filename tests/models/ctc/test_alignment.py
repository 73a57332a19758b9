"""Alignments are those of the likeliest path, and probabilities the sum over all paths."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from linattn_models import ctc_align
from linattn_models.ctc.alignment import Floats, labeling_log_probability

Path = tuple[int, ...]
Labels = tuple[int, ...]


def frames_of(length: int, classes: int, seed: int = 0, sharpness: float = 2.0) -> Floats:
    """Normalized log-probabilities (T, C)."""
    scores = sharpness * np.random.default_rng(seed).standard_normal((length, classes))
    return scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)


def spelled(path: Iterable[int]) -> list[int]:
    """The phones of a path, by the definition."""
    return [label for label, _ in itertools.groupby(path) if label]


def every_path(frames: Floats) -> dict[Labels, list[tuple[float, Path]]]:
    """The log-probability of every path, by the phones that it gives."""
    length, classes = frames.shape
    paths: dict[Labels, list[tuple[float, Path]]] = defaultdict(list)
    for path in itertools.product(range(classes), repeat=length):
        paths[tuple(spelled(path))].append((float(frames[range(length), path].sum()), path))
    return paths


def total(paths: list[tuple[float, Path]]) -> float:
    return float(np.logaddexp.reduce([score for score, _ in paths]))


small = given(st.integers(1, 5), st.integers(2, 3), st.integers(0, 10**6))


@small
def test_the_sum_over_all_paths(length: int, classes: int, seed: int) -> None:
    frames = frames_of(length, classes, seed)
    for labels, paths in every_path(frames).items():
        assert labeling_log_probability(frames, labels) == pytest.approx(total(paths), abs=1e-10)


@small
def test_the_best_path(length: int, classes: int, seed: int) -> None:
    frames = frames_of(length, classes, seed)
    for labels, paths in every_path(frames).items():
        _, path = max(paths)
        spans, time = [], 0
        for label, group in itertools.groupby(path):
            count = len(list(group))
            if label:
                confidence = np.exp(frames[time : time + count, label].mean())
                spans.append((label, time, time + count - 1, pytest.approx(confidence)))
            time += count
        aligned = ctc_align(torch.from_numpy(frames), labels)
        assert [(a.phone, a.first, a.last, a.confidence) for a in aligned] == spans


def test_phones_too_many_for_the_frames_are_refused() -> None:
    frames = frames_of(3, 3)
    assert [a.first for a in ctc_align(frames, [1, 2, 1])] == [0, 1, 2]
    for labels in ([1, 1, 2], [1, 2, 1, 2]):
        assert labeling_log_probability(frames, labels) == -np.inf
        with pytest.raises(ValueError, match="phones"):
            ctc_align(frames, labels)


def test_no_frames_have_no_phones() -> None:
    frames = np.zeros((0, 3))
    assert ctc_align(frames, []) == [] and labeling_log_probability(frames, []) == 0
    with pytest.raises(ValueError, match="phones"):
        ctc_align(frames, [1])


@pytest.mark.parametrize(
    ("frames", "labels", "named"),
    [
        (np.zeros((2, 3, 3)), [1], "shape"),
        (np.zeros((2, 1)), [], "phone"),
        (np.full((2, 3), np.nan), [1], "frame 0"),
        (np.array([[0, 0], [-np.inf, -np.inf]]), [1], "frame 1"),
        (np.zeros((2, 3)), [3], "phones"),
        (np.zeros((2, 3)), [0], "phones"),
        (np.zeros((2, 3)), [1.0], "phones"),
    ],
)
def test_what_cannot_be_aligned_is_refused(frames: Floats, labels: list[int], named: str) -> None:
    with pytest.raises((ValueError, TypeError), match=named):
        ctc_align(frames, labels)
