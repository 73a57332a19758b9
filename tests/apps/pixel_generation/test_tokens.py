"""Tokens are the numbers of an image in reading order, and nothing is lost on the way back."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from pixels.datasets import Pixels
from pixels.tokens import Layout, to_images, to_tokens

SIDES = st.integers(1, 5)
GRAY = arrays.arrays(np.uint8, st.tuples(st.integers(1, 3), SIDES, SIDES))
COLOR = arrays.arrays(np.uint8, st.tuples(st.integers(1, 3), SIDES, SIDES, st.just(3)))


@given(images=st.one_of(GRAY, COLOR), layout=st.sampled_from(["sub-pixels", "pixels"]))
def test_tokens_become_the_same_images_again(images: Pixels, layout: Layout) -> None:
    tokens = to_tokens(images, layout)
    assert tokens.dtype == torch.int64
    back = to_images(tokens, images.shape[1], images.shape[2])
    np.testing.assert_array_equal(back, images)


def test_order_is_row_by_row_with_colors_of_a_pixel_together() -> None:
    image = np.arange(2 * 2 * 3, dtype=np.uint8).reshape(1, 2, 2, 3)
    assert to_tokens(image, "sub-pixels").tolist() == [list(range(12))]
    assert to_tokens(image, "pixels").tolist() == [
        [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]],
    ]
