"""What a rung is asked for: sizes for those who plan its launches, addresses for its kernels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from linattn_core.native import strided

#: Names of the dtypes as the headers spell them; a kernel is compiled for one.
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_MAPS = {"identity": 0, "relu": 1, "elu": 2}


@dataclass(frozen=True)
class Problem:
    """The sizes of a call.

    Attributes:
        batch, heads, length, dim, value_dim: B, H, N, D, M.
        dtype: of all tensors, by its name in the headers.
        segment: positions that one block walks, where the sequence is split.
    """

    batch: int
    heads: int
    length: int
    dim: int
    value_dim: int
    dtype: str
    segment: int

    @property
    def blocks(self) -> int:
        """Heads of all sequences: each is a walk of its own."""
        return self.batch * self.heads

    @property
    def segments(self) -> int:
        """Pieces of a sequence."""
        return -(-self.length // self.segment)

    @property
    def widths(self) -> tuple[int, int]:
        """D and M as kernels are compiled for them, in whole tiles of 16."""
        return padded(self.dim), padded(self.value_dim)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 4 if self.dtype == "float32" else 2


def padded(dim: int) -> int:
    """The width in whole tiles of 16, one at least."""
    return max(16, -(-dim // 16) * 16)


class Tensor4(ctypes.Structure):
    """`linattn::Tensor4`: an address, and strides in elements."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("batch", ctypes.c_longlong), ("head", ctypes.c_longlong),
        ("position", ctypes.c_longlong), ("dim", ctypes.c_longlong),
    ]  # fmt: skip


class Call(ctypes.Structure):
    """`linattn::prototypes::Call`, which every kernel of the ladder is handed by value."""

    _fields_ = [
        ("query", Tensor4), ("key", Tensor4), ("value", Tensor4), ("out", Tensor4),
        ("normalizer", ctypes.c_void_p), ("sums", ctypes.c_void_p),
        ("heads", ctypes.c_longlong), ("length", ctypes.c_longlong),
        ("segment", ctypes.c_longlong), ("dim", ctypes.c_int), ("value_dim", ctypes.c_int),
        ("map", ctypes.c_int), ("eps", ctypes.c_float),
    ]  # fmt: skip


def call_of(
    problem: Problem,
    tensors: tuple[Tensor, Tensor, Tensor, Tensor],
    normalizer: Tensor,
    sums: Tensor,
    feature_map: str,
    eps: float,
) -> Call:
    """The kernels' argument; the caller keeps the tensors while they run."""
    query, key, value, out = (Tensor4(*strided(x)) for x in tensors)
    return Call(
        query, key, value, out, normalizer.data_ptr(), sums.data_ptr(), problem.heads,
        problem.length, problem.segment, problem.dim, problem.value_dim, _MAPS[feature_map], eps,
    )  # fmt: skip
