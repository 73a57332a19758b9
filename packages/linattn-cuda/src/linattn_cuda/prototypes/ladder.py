"""The rungs, from the lowest: each one's idea, its source, and how its kernels are launched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output
from linattn_core.errors import expected
from linattn_cuda.prototypes import compiler
from linattn_cuda.prototypes.gpu import GPU
from linattn_cuda.prototypes.problem import (
    DTYPES,
    Launch,
    Launcher,
    Problem,
    Run,
    arguments_of,
    padded,
)

CHUNK = 64  # positions that the rungs on tensor cores take at a time
_CHUNK_THREADS = 128
# Fewer positions are not worth a segment: its sums are read and written as well.
_SHORTEST_SEGMENT = 512
_BLOCKS_A_MULTIPROCESSOR = 4
_ALL = tuple(DTYPES)
_HALF = (torch.bfloat16,)


@dataclass(frozen=True)
class Rung:
    """One step of the ladder.

    Attributes:
        name: of the rung, and of its file under `kernels/`.
        idea: what it adds to the one below, in a sentence; its file says more.
        kernels: templates of the file, in the order of their launch.
        plan: the launches that a problem takes.
        capability: the oldest GPU that it is compiled for.
        keeps: dtypes whose accuracy it keeps; others run, with that of bfloat16.
    """

    name: str
    idea: str
    kernels: tuple[str, ...]
    plan: Callable[[Problem], tuple[Launch, ...]]
    capability: tuple[int, int]
    keeps: tuple[torch.dtype, ...]

    @property
    def source(self) -> Path:
        """The file that holds the rung's kernels, and the words that explain them."""
        return compiler.KERNELS / f"{self.name}.cu"

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        feature_map: str = "elu",
        eps: float = 1e-6,
    ) -> Tensor:
        """Causal linear attention (equations 8 and 9) on a GPU, by this rung.

        Args:
            query, key: (B, H, N, D), value: (B, H, N, M); CUDA tensors of one dtype (float32,
                bfloat16 or float16), any strides, D and M up to 128.
            feature_map: "elu", "relu" or "identity".
            eps: added to the denominator.

        Returns:
            (B, H, N, M), contiguous, in the dtype of value. Nothing is recorded for gradients.

        Raises:
            ValueError: tensors that are not on a GPU.
        """
        if not query.is_cuda:
            raise ValueError(
                expected(
                    f"rung {self.name!r}",
                    "CUDA tensors",
                    f"tensors on {query.device}",
                    'move them to a GPU, or call compile("sm_90"), which needs none',
                )
            )
        return self.run(AttentionCall(query, key, value, True, feature_map, eps=eps)).out

    def run(self, call: AttentionCall, launcher: Launcher = GPU) -> Output:
        """The output and the denominators (B, H, N); on a GPU unless told otherwise."""
        value = call.value
        problem = _problem(call, launcher.multiprocessors(value.device))
        out = value.new_empty(value.shape)
        normalizer = value.new_empty(value.shape[:3], dtype=torch.float32)
        if normalizer.numel():
            sums = value.new_empty(_scratch(self, problem), dtype=torch.float32)
            arguments = arguments_of(problem, call, out, normalizer, sums)
            run = Run(self.name, self.kernels, problem, self.plan(problem), arguments)
            launcher.launch(run, value.device)
        return Output(out, normalizer, None)

    def compile(
        self, arch: str, *, dtype: torch.dtype = torch.bfloat16, dim: int = 64, value_dim: int = 64
    ) -> bytes:
        """Machine code of all its kernels for an architecture as "sm_90"; needs no GPU.

        Raises:
            RuntimeError: NVRTC did not compile it; the message is its log.
        """
        return compiler.compiled(self.name, self.kernels, DTYPES[dtype], padded(dim),
                                 padded(value_dim), arch).code  # fmt: skip

    def shared_bytes(self, dim: int, value_dim: int, dtype: torch.dtype) -> int:
        """Shared memory that its largest block asks for."""
        problem = Problem(1, 1, 2 * CHUNK, dim, value_dim, DTYPES[dtype], CHUNK)
        return max(launch.shared for launch in self.plan(problem))


def _problem(call: AttentionCall, multiprocessors: int) -> Problem:
    batch, heads, length, dim = call.query.shape
    segment = _segment(batch * heads, length, multiprocessors)
    return Problem(batch, heads, length, dim, call.value_dim, DTYPES[call.value_dtype], segment)


def _segment(blocks: int, length: int, multiprocessors: int) -> int:
    """Positions a segment, in whole chunks: as many segments as keep a GPU busy, and no more."""
    wanted = _BLOCKS_A_MULTIPROCESSOR * multiprocessors // max(1, blocks)
    segments = max(1, min(wanted, length // _SHORTEST_SEGMENT))
    return max(1, -(-length // (segments * CHUNK))) * CHUNK


def _scratch(rung: Rung, problem: Problem) -> int:
    """Numbers that the rung keeps in global memory between its kernels."""
    return problem.blocks * problem.segments * _state_numbers(problem) if rung is SPLIT else 0


def _state_numbers(problem: Problem) -> int:
    dim, value_dim = problem.widths
    return dim * (value_dim + 8)


def _recurrent(problem: Problem) -> tuple[Launch, ...]:
    dim, value_dim = problem.widths
    threads = -(-(value_dim + 1) // 32) * 32
    return (Launch("recurrent", (problem.blocks, 1), threads, 4 * (2 * dim + 1)),)


def _chunked(problem: Problem) -> tuple[Launch, ...]:
    dim, value_dim = problem.widths
    chunk = 16 if dim + value_dim > 128 else 32
    numbers = chunk * (2 * (dim + 1) + value_dim + 1 + chunk) + dim * (value_dim + 1)
    return (Launch("chunked", (problem.blocks, 1), 256, 4 * numbers),)


def _tiles(problem: Problem) -> int:
    """Bytes of a chunk in bfloat16, and of the state as the tensor cores read it."""
    dim, value_dim = problem.widths
    return 2 * (2 * CHUNK * (dim + 8) + (CHUNK + dim) * (value_dim + 8))


def _raw(problem: Problem) -> int:
    """Bytes of a chunk as it lies in global memory."""
    dim, value_dim = problem.widths
    return CHUNK * (2 * dim + value_dim) * problem.itemsize


def _tensor_cores(problem: Problem) -> tuple[Launch, ...]:
    return (Launch("tensor_cores", (problem.blocks, 1), _CHUNK_THREADS, _tiles(problem)),)


def _overlapped(problem: Problem) -> tuple[Launch, ...]:
    shared = _tiles(problem) + _raw(problem)
    return (Launch("overlapped", (problem.blocks, 1), _CHUNK_THREADS, shared),)


def _split(problem: Problem) -> tuple[Launch, ...]:
    blocks, segments, shared = problem.blocks, problem.segments, _tiles(problem) + _raw(problem)
    sums = Launch("segment_sums", (blocks, segments - 1), _CHUNK_THREADS, shared)
    starts = Launch("segment_starts", (blocks, -(-_state_numbers(problem) // 256)), 256, 0)
    outputs = Launch("segment_outputs", (blocks, segments), _CHUNK_THREADS, shared)
    return (sums, starts, outputs) if segments > 1 else (starts, outputs)


RECURRENT = Rung(
    "recurrent",
    "The paper's algorithm: one block a head, one position at a time, S in registers; feature map "
    "and normalizer fused.",
    ("recurrent",), _recurrent, (7, 5), _ALL,
)  # fmt: skip
CHUNKED = Rung(
    "chunked",
    "A chunk of positions a step: the masked product within it, S between chunks.",
    ("chunked",), _chunked, (7, 5), _ALL,
)  # fmt: skip
TENSOR_CORES = Rung(
    "tensor_cores",
    "The chunk's products on tensor cores, in bfloat16 with float32 sums.",
    ("tensor_cores",), _tensor_cores, (8, 0), _HALF,
)  # fmt: skip
OVERLAPPED = Rung(
    "overlapped",
    "The next chunk is copied while this one is computed.",
    ("overlapped",), _overlapped, (8, 0), _HALF,
)  # fmt: skip
SPLIT = Rung(
    "split",
    "The sequence in segments, for few heads and long sequences: sums, starts, outputs.",
    ("segment_sums", "segment_starts", "segment_outputs"), _split, (8, 0), _HALF,
)  # fmt: skip

#: The rungs by name, from the lowest.
LADDER = {x.name: x for x in (RECURRENT, CHUNKED, TENSOR_CORES, OVERLAPPED, SPLIT)}
