"""The sizes of a call, and the launches that each rung's kernels take for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from linattn_core.calls import AttentionCall

#: Names of the dtypes as the headers spell them; a kernel is compiled for one.
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
CHUNK = 64  # positions that the rungs on tensor cores take at a time
_CHUNK_THREADS = 128
# Fewer positions are not worth a segment: its sums are read and written as well.
_SHORTEST_SEGMENT = 512
_BLOCKS_A_MULTIPROCESSOR = 4


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

    @classmethod
    def of(cls, call: AttentionCall, multiprocessors: int) -> Problem:
        """The sizes, with as many segments in whole chunks as keep a GPU busy, and no more."""
        batch, heads, length, dim = call.query.shape
        wanted = _BLOCKS_A_MULTIPROCESSOR * multiprocessors // max(1, batch * heads)
        segments = max(1, min(wanted, length // _SHORTEST_SEGMENT))
        segment = max(1, -(-length // (segments * CHUNK))) * CHUNK
        return cls(batch, heads, length, dim, call.value_dim, DTYPES[call.value_dtype], segment)

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
        return pad_width(self.dim), pad_width(self.value_dim)

    @property
    def state_numbers(self) -> int:
        """Numbers of a segment's sums."""
        dim, value_dim = self.widths
        return dim * (value_dim + 8)

    @property
    def tile_bytes(self) -> int:
        """A chunk in bfloat16, and the state as the tensor cores read it."""
        dim, value_dim = self.widths
        return 2 * (2 * CHUNK * (dim + 8) + (CHUNK + dim) * (value_dim + 8))

    @property
    def raw_bytes(self) -> int:
        """A chunk as it lies in global memory."""
        dim, value_dim = self.widths
        return CHUNK * (2 * dim + value_dim) * (4 if self.dtype == "float32" else 2)


def pad_width(dim: int) -> int:
    """The width in whole tiles of 16, one at least."""
    return max(16, -(-dim // 16) * 16)


class Launch(NamedTuple):
    """One kernel on its way: blocks along x and y, threads of a block, its shared memory."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    shared: int


def plan_recurrent(problem: Problem) -> tuple[Launch, ...]:
    """A block a head, a thread a value."""
    dim, value_dim = problem.widths
    threads = -(-(value_dim + 1) // 32) * 32
    return (Launch("recurrent", (problem.blocks, 1), threads, 4 * (2 * dim + 1)),)


def plan_chunked(problem: Problem) -> tuple[Launch, ...]:
    """Wide rows take shorter chunks."""
    dim, value_dim = problem.widths
    chunk = 16 if dim + value_dim > 128 else 32
    numbers = chunk * (2 * (dim + 1) + value_dim + 1 + chunk) + dim * (value_dim + 1)
    return (Launch("chunked", (problem.blocks, 1), 256, 4 * numbers),)


def plan_tensor_cores(problem: Problem) -> tuple[Launch, ...]:
    """A block a head, whose state and chunk lie in shared memory."""
    return (Launch("tensor_cores", (problem.blocks, 1), _CHUNK_THREADS, problem.tile_bytes),)


def plan_overlapped(problem: Problem) -> tuple[Launch, ...]:
    """The same, beside the next chunk as it arrives."""
    shared = problem.tile_bytes + problem.raw_bytes
    return (Launch("overlapped", (problem.blocks, 1), _CHUNK_THREADS, shared),)


def plan_split(problem: Problem) -> tuple[Launch, ...]:
    """A block a segment: sums of all but the last, states before each, outputs."""
    blocks, segments = problem.blocks, problem.segments
    shared = problem.tile_bytes + problem.raw_bytes
    sums = Launch("segment_sums", (blocks, segments - 1), _CHUNK_THREADS, shared)
    starts = Launch("segment_starts", (blocks, -(-problem.state_numbers // 256)), 256, 0)
    outputs = Launch("segment_outputs", (blocks, segments), _CHUNK_THREADS, shared)
    return (sums, starts, outputs) if segments > 1 else (starts, outputs)
