"""The datasets that pixels are learned from, by name.

    digits          8x8, 17 levels, ships with scikit-learn
    mnist           28x28, 256 levels
    fashion-mnist   28x28, 256 levels
    cifar10         32x32 in three colors, 256 levels
    folder          pictures of one's own, PNG and JPEG

Three are read in the form they are published in, from a folder or from the cache that `download`
fills.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast, get_args

import pooch

from linattn_core.errors import expected, near, quote
from pixels.datasets import cifar, digits, folder, idx
from pixels.datasets.images import FolderSettings, Images, Pixels
from pixels.datasets.sources import SOURCES, fetch

DatasetName = Literal["digits", "mnist", "fashion-mnist", "cifar10", "folder"]

__all__ = ["DatasetName", "FolderSettings", "Images", "Pixels", "load", "require_dataset"]

_READERS = {"mnist": idx.load, "fashion-mnist": idx.load, "cifar10": cifar.load}


def load(
    name: DatasetName,
    data_dir: Path | None = None,
    *,
    download: bool = False,
    settings: FolderSettings | None = None,
) -> Images:
    """The images of dataset `name`, in their fixed parts.

    Args:
        name: digits, mnist, fashion-mnist, cifar10 or folder.
        data_dir: the folder with the dataset's files, or with a subfolder of the dataset's name
            that has them; the user's cache folder if None. digits needs none.
        download: fetch the files into the subfolder first, where they are not there already.
        settings: how the pictures of a folder become images.

    Raises:
        FileNotFoundError: a folder or file is not there.
        OSError: a file could not be downloaded.
        ValueError: a file is not what it should be, or the name is not known.
    """
    settings = settings or FolderSettings()
    if require_dataset(name) != "folder" and settings != FolderSettings():
        what = "--size, --color, --fit and --split-seed"
        raise ValueError(expected(what, "--dataset folder", quote(name)))
    if name == "digits":
        return digits.load()
    if data_dir is not None and not download and not data_dir.is_dir():
        advice = "correct the path" + ", or create it with --download" * (name in SOURCES)
        got = f"{data_dir}, and there is no such folder"
        raise FileNotFoundError(expected("--data-dir", "a folder", got, advice))
    if name == "folder":
        if data_dir is None or download:
            got = "--download" if download else "none"
            raise ValueError(expected("--dataset folder", "your own folder in --data-dir", got))
        return folder.load(data_dir, settings)
    own = (data_dir or Path(pooch.os_cache("linattn"))) / name
    if download:
        fetch(SOURCES[name], own)
    return _READERS[name](name, [own] if data_dir is None else [own, data_dir])


def require_dataset(name: str) -> DatasetName:
    """The name, if it is that of a dataset; else a ValueError with the near ones."""
    names = get_args(DatasetName)
    if name not in names:
        raise ValueError(expected("--dataset", "a known name", quote(name), near(name, names)))
    return cast(DatasetName, name)
