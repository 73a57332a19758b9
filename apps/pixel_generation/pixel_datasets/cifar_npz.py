"""CIFAR-10, or a part of it, as one .npz file with the arrays x_train and x_test."""

from __future__ import annotations

import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from .faults import damaged
from .images import Pixels

# What numpy and zipfile raise for bytes that are not theirs; some encrypted, or a broken header.
UNREADABLE = (
    ValueError,
    OSError,
    EOFError,
    RuntimeError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)


def read(path: Path, source: str) -> tuple[Pixels, Pixels]:
    """Train and test images, each (n, 32, 32, 3). Pickled objects in the file are refused."""
    arrays = _arrays(path, source)
    return _images(arrays, "x_train", path, source), _images(arrays, "x_test", path, source)


def _arrays(path: Path, source: str) -> dict[str, np.ndarray[Any, Any]]:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                raise ValueError("a single .npy array")
            return {name: loaded[name] for name in loaded.files if name in ("x_train", "x_test")}
    except UNREADABLE as error:
        raise damaged(path, "a whole .npz archive", f"a fault in it ({error})", source) from error


def _images(arrays: dict[str, np.ndarray[Any, Any]], name: str, path: Path, source: str) -> Pixels:
    if name not in arrays:
        raise damaged(path, f"an array {name}", f"only {sorted(arrays)}", source)
    array = arrays[name]
    if array.dtype != np.uint8 or array.shape[1:] != (32, 32, 3) or len(array) == 0:
        came = f"{array.dtype} {array.shape}"
        raise damaged(path, f"{name} of uint8 and shape (n, 32, 32, 3)", came, source)
    return array
