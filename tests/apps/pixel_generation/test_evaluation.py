"""The baseline against sums done by hand, and in its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pixels.datasets import load
from pixels.evaluation import independent_pixels


def test_bits_are_those_counted_by_hand() -> None:
    """Two positions, two levels, three images: counts (3, 0) and (1, 2), each plus a half."""
    train = np.array([[[0, 0]], [[0, 1]], [[0, 1]]], np.uint8)
    asked = np.array([[[0, 1]]], np.uint8)
    expected = -(math.log2(3.5 / 4) + math.log2(2.5 / 4)) / 2
    assert independent_pixels(train, asked, levels=2) == pytest.approx(expected)


def test_a_level_never_seen_costs_a_finite_number_of_bits() -> None:
    train = np.zeros((10, 2, 2), np.uint8)
    asked = np.full((1, 2, 2), 255, np.uint8)
    assert independent_pixels(train, asked, levels=256) == pytest.approx(math.log2(138 / 0.5))


def test_noise_costs_its_entropy() -> None:
    noise = np.random.default_rng(0).integers(0, 4, (20_000, 2, 2), dtype=np.uint8)
    assert independent_pixels(noise[:10_000], noise[10_000:], levels=4) == pytest.approx(
        2, abs=0.01
    )


def test_bits_of_the_digits() -> None:
    images = load("digits")
    assert independent_pixels(images.train, images.test, images.levels) == pytest.approx(
        2.436, abs=1e-3
    )
