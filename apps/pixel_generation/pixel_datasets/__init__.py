"""The four datasets that pixels are learned from, by name.

    digits          8x8, 17 levels, ships with scikit-learn
    mnist           28x28, 256 levels
    fashion-mnist   28x28, 256 levels
    cifar10         32x32 in three colors, 256 levels

The last three are read from `data_dir` in the form they are published in. Nothing is downloaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

from . import cifar, digits, idx
from .images import Images, Pixels

DatasetName = Literal["digits", "mnist", "fashion-mnist", "cifar10"]

__all__ = ["DatasetName", "Images", "Pixels", "load"]


def load(name: DatasetName, data_dir: Path | None = None) -> Images:
    """The images of dataset `name`, in their fixed parts.

    Args:
        name: digits, mnist, fashion-mnist or cifar10.
        data_dir: the folder with the dataset's files, or with a subfolder of the dataset's name
            that has them. digits needs none.

    Raises:
        FileNotFoundError: a folder or file is not there.
        ValueError: a file is not what it should be, or the name is none of the four.
    """
    if data_dir is not None and not data_dir.is_dir():
        raise FileNotFoundError(f"expected --data-dir to be a folder, found none at {data_dir}")
    if name == "digits":
        return digits.load()
    if name in idx.SOURCES:
        return idx.load(name, data_dir)
    if name == "cifar10":
        return cifar.load(data_dir)
    raise ValueError(f"expected a dataset of {', '.join(get_args(DatasetName))}, got {name!r}")
