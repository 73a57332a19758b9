"""One published python batch of CIFAR-10, read without trusting it.

The batches are pickles, and a pickle is a program: `pickle.load` on a file from the internet runs
whatever its author wrote. These files need very little of that language. Besides bytes, strings,
integers, lists and dicts they name three things of numpy: `_reconstruct`, `ndarray` and `dtype`.
So we let a file name those three, give it harmless stand-ins for them, and refuse all else. No
code of the file's choosing runs, not even numpy's.
"""

from __future__ import annotations

import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np

from .faults import damaged
from .images import Pixels

# Everything that the unpickler raises on bytes that are no pickle, or one cut short.
UNREADABLE = (
    pickle.UnpicklingError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    TypeError,
    struct.error,
    ValueError,
)


class _Dtype:
    """Stands for numpy.dtype: it keeps the name it was made with and ignores its state."""

    __slots__ = ("name",)

    def __init__(self, name: Any, *_: Any) -> None:
        self.name = name

    def __setstate__(self, state: Any) -> None:
        pass


class _Array:
    """Stands for numpy.ndarray: it keeps shape, type and bytes as they came, to be judged later."""

    __slots__ = ("content", "dtype", "fortran", "shape")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, self.shape, self.dtype, self.fortran, self.content = state


def _reconstruct(*_: Any) -> _Array:
    return _Array()


STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
}


# The unpickler written in Python: the one in C grows its memo to any index that a file names, so
# a single flipped bit there can ask for gigabytes. A batch takes a tenth of a second.
class _Unpickler(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in STAND_INS:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no batch needs")
        return STAND_INS[module, name]


def read_batch(path: Path, source: str) -> Pixels:
    """The images (n, 32, 32, 3) of one batch. Nothing in the file is executed."""
    try:
        batch = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except UNREADABLE as error:
        came = f"a fault in it ({error})"
        raise damaged(path, "a CIFAR-10 python batch", came, source) from error
    if not isinstance(batch, dict):
        raise damaged(path, "a dict with data and labels", type(batch).__name__, source)
    rows = _rows(batch.get(b"data"), path, source)
    labels = batch.get(b"labels")
    if not isinstance(labels, list) or len(labels) != len(rows):
        came = f"{len(labels):,}" if isinstance(labels, list) else type(labels).__name__
        raise damaged(path, f"a list of {len(rows):,} labels, one an image", came, source)
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _rows(array: Any, path: Path, source: str) -> Pixels:
    """The pixel bytes (n, 3072), after every claim that the file makes about them is checked."""
    expected = "data of uint8 and shape (n, 3072)"
    if not isinstance(array, _Array) or not hasattr(array, "content"):
        raise damaged(path, expected, type(array).__name__, source)
    name = getattr(array.dtype, "name", None)
    shape = array.shape
    sized = isinstance(shape, tuple) and len(shape) == 2 and all(type(n) is int for n in shape)
    if name not in (b"u1", "u1") or not sized or shape[1] != 3072 or shape[0] < 1 or array.fortran:
        raise damaged(path, expected, f"dtype {name!r}, shape {shape!r}", source)
    if not isinstance(array.content, bytes) or len(array.content) != shape[0] * 3072:
        length = len(array.content) if isinstance(array.content, bytes) else "no"
        raise damaged(path, f"{shape[0] * 3072:,} bytes of pixels", f"{length} bytes", source)
    return np.frombuffer(array.content, np.uint8).reshape(shape)
