"""The embedded digits: the split is fixed, complete, without overlap, and every class is in it."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from pixels.datasets import digits, load


def test_split_is_a_partition_of_the_scans() -> None:
    images = load("digits")
    scans, _ = load_digits(return_X_y=True)
    parts = np.concatenate([images.train, images.validation, images.test]).reshape(-1, 64)
    assert (len(images.train), len(images.validation), len(images.test)) == (1397, 100, 300)
    assert sorted(map(tuple, parts)) == sorted(map(tuple, scans.astype(np.uint8)))
    assert images.levels == 17 and parts.max() == 16 and images.dimensions == 64


CHECKSUM = 894_538_623


def test_split_never_moves() -> None:
    """Bits per dimension of two runs compare only if they were held out the same images."""
    first, again = digits.load(), digits.load()
    np.testing.assert_array_equal(first.test, again.test)
    weights = np.arange(first.test.size).reshape(first.test.shape)
    assert int((first.test * weights).sum()) == CHECKSUM
