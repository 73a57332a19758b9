"""scikit-learn's handwritten digits: real scans that come with a package, with no download.

1,797 scans by 43 people, 8x8 pixels, 17 levels of gray (0 .. 16). It is the test part of the UCI
"Optical Recognition of Handwritten Digits" set.

The split is ours, since none is published for these 1,797: 300 for the test and 100 for
validation, drawn class by class (so that each holds its share of every digit) with seed 0. It
never changes: bits per dimension compare only on the same images.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from pixels.datasets.images import Images

TEST_IMAGES = 300
VALIDATION_IMAGES = 100
LEVELS = 17
SPLIT_SEED = 0


def load() -> Images:
    """1,397 training, 100 validation and 300 test scans, always the same ones."""
    scans, classes = load_digits(return_X_y=True)
    pixels = scans.reshape(-1, 8, 8).astype(np.uint8)
    rest, test, rest_classes, _ = train_test_split(
        pixels, classes, test_size=TEST_IMAGES, stratify=classes, random_state=SPLIT_SEED
    )
    train, validation = train_test_split(
        rest, test_size=VALIDATION_IMAGES, stratify=rest_classes, random_state=SPLIT_SEED
    )
    return Images("digits", train, validation, test, LEVELS)
