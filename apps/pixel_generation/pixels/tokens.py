"""Images as sequences of tokens, and back.

A transformer reads one token after the other, so an image is read like a page: row by row, each
row from the left. A gray pixel is one token, its level. A pixel in color can be

    "sub-pixels"   three tokens, red, green, blue: what the paper does, 3,072 of them for CIFAR-10
    "pixels"       one token of three numbers, whose dependence the head models: 1,024 positions
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from pixels.datasets import Pixels

Layout = Literal["sub-pixels", "pixels"]


def to_tokens(images: Pixels, layout: Layout = "sub-pixels") -> Tensor:
    """Tokens (n, positions), or (n, positions, 3) for colors in the layout "pixels", int64."""
    colors_together = layout == "pixels" and images.ndim == 4
    shape = (len(images), -1, 3) if colors_together else (len(images), -1)
    return torch.from_numpy(images.reshape(shape).astype(np.int64))


def to_images(tokens: Tensor, height: int, width: int) -> Pixels:
    """The images (n, height, width) or (n, height, width, 3) that `to_tokens` was given."""
    levels = tokens.to("cpu", torch.uint8).numpy()
    channels = levels[0].size // (height * width)
    color = () if channels == 1 else (channels,)
    return levels.reshape(len(levels), height, width, *color)


class TokenData:
    """Images that a training loop draws batches of tokens from.

    They stay bytes until they are drawn: as int64 MNIST would take eight times its 43 MB.
    """

    def __init__(self, images: Pixels, layout: Layout) -> None:
        self.images = images
        self.layout = layout

    def __len__(self) -> int:
        return len(self.images)

    def batch(self, indices: Tensor) -> Tensor:
        """The images at `indices` (batch,) as tokens."""
        return to_tokens(self.images[indices.numpy()], self.layout)
