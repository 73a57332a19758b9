"""The images of a dataset: three arrays, and the number of gray levels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from linattn_core.errors import expected
from linattn_lab.runs import data_digest

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class FolderSettings:
    """How the pictures of a folder become images: for the dataset folder alone."""

    size: int = 28
    """Your own pictures become squares of so many pixels each way."""
    color: bool = False
    """Keep their colors; else they become gray."""
    fit: Literal["crop", "pad"] = "crop"
    """crop: the middle of a picture, scaled; pad: all of it, with black beside it."""
    split_seed: int = 0
    """Decides which pictures are held out."""


@dataclass(frozen=True)
class Images:
    """Images of one dataset, each part (n, height, width) or (n, height, width, 3), uint8.

    A pixel is an integer in 0 .. levels - 1. `train` is for training, `validation` is evaluated
    during the training, and `test` once, at the end. `settings` are those of a folder.
    """

    name: str
    train: Pixels
    validation: Pixels
    test: Pixels
    levels: int
    settings: FolderSettings | None = None

    @property
    def height(self) -> int:
        return int(self.train.shape[1])

    @property
    def width(self) -> int:
        return int(self.train.shape[2])

    @property
    def channels(self) -> int:
        return 1 if self.train.ndim == 3 else int(self.train.shape[3])

    @property
    def dimensions(self) -> int:
        """Numbers per image, over which bits per dimension are counted."""
        return self.height * self.width * self.channels

    def digest(self) -> str:
        """A hash of all three parts."""
        return data_digest(self.train, self.validation, self.test)


def hold_out_the_end(train: Pixels) -> tuple[Pixels, Pixels]:
    """Train without its last tenth (5,000 images at most), and those images as validation.

    That is the last 5,000 of MNIST's 60,000 and of CIFAR-10's 50,000. The published files are
    already in random order, so their end is as good a sample as any, and needs no seed.
    """
    if len(train) < 2:
        raise ValueError(expected("the training images", "2 or more, to hold one out", len(train)))
    held = max(1, min(5_000, len(train) // 10))
    return train[:-held], train[-held:]
