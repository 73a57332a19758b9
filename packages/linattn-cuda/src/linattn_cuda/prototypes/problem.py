"""What a rung is asked for: sizes for those who plan its launches, addresses for its kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall
from linattn_core.native import address_and_strides
from linattn_cuda import _native

#: Names of the dtypes as the headers spell them; a kernel is compiled for one.
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


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


class Arguments(ctypes.Structure):
    """`linattn::prototypes::Call`, which every kernel of the ladder is handed by value."""

    _fields_ = [
        ("query", Tensor4), ("key", Tensor4), ("value", Tensor4), ("out", Tensor4),
        ("normalizer", ctypes.c_void_p), ("sums", ctypes.c_void_p),
        ("heads", ctypes.c_longlong), ("length", ctypes.c_longlong),
        ("segment", ctypes.c_longlong), ("dim", ctypes.c_int), ("value_dim", ctypes.c_int),
        ("map", ctypes.c_int), ("eps", ctypes.c_float),
    ]  # fmt: skip


def arguments_of(
    problem: Problem, call: AttentionCall, out: Tensor, normalizer: Tensor, sums: Tensor
) -> Arguments:
    """The kernels' argument; the caller keeps the tensors while they run."""
    query, key, value, written = (
        Tensor4(*address_and_strides(x.detach())) for x in (*call[:3], out)
    )
    return Arguments(
        query, key, value, written, normalizer.data_ptr(), sums.data_ptr(), problem.heads,
        problem.length, problem.segment, problem.dim, problem.value_dim,
        int(_native.FeatureMap.__members__[call.feature_map]), call.eps,
    )  # fmt: skip


class Launch(NamedTuple):
    """One kernel on its way: blocks along x and y, threads of a block, its shared memory."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    shared: int


class Run(NamedTuple):
    """A rung at work on one problem.

    Attributes:
        source: the file of the rung under `kernels/`, without its ending.
        kernels: templates of the file.
        problem: what they are compiled for.
        launches: in their order.
        arguments: of every kernel.
    """

    source: str
    kernels: tuple[str, ...]
    problem: Problem
    launches: tuple[Launch, ...]
    arguments: Arguments


class Launcher(NamedTuple):
    """What rungs run on: a GPU, or in the tests the emulation of one.

    Attributes:
        launch: compiles what is needed and launches in this order.
        multiprocessors: how many blocks run side by side, at least.
    """

    launch: Callable[[Run, torch.device], None]
    multiprocessors: Callable[[torch.device], int]
