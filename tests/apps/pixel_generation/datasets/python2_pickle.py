"""Pickles as Python 2 wrote them, which is what the published CIFAR-10 batches are."""

from __future__ import annotations

import io
import pickle
import struct
from typing import Any, ClassVar


class _Python2Pickler(pickle._Pickler):
    """Protocol 2 with byte strings as BINSTRING, an opcode that Python 3 reads but never writes."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)  # type: ignore[misc]

    def save_bytes(self, value: bytes) -> None:
        self.write(pickle.BINSTRING + struct.pack("<i", len(value)) + value)
        self.memoize(value)

    dispatch[bytes] = save_bytes

    def save_str(self, value: str) -> None:
        self.save_bytes(value.encode("latin1"))

    dispatch[str] = save_str


def dumps_like_python2(value: Any) -> bytes:
    """`value` as cPickle of Python 2 would have written it, numpy's old module names included."""
    buffer = io.BytesIO()
    _Python2Pickler(buffer, protocol=2).dump(value)
    return buffer.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
