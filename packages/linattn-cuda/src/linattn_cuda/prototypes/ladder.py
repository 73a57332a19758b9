"""The rungs, from the lowest: each one's idea, its source, and how its kernels are launched.

CuPy loads what NVRTC compiled, and launches it on torch's stream.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output
from linattn_core.errors import expected
from linattn_core.native import address_and_strides
from linattn_cuda import _native, nvrtc
from linattn_cuda.compiling import headers

KERNELS = Path(__file__).parent / "kernels"
# A block gets so much shared memory without asking.
_UNASKED = 48 << 10
CHUNK = 64  # positions that the rungs on tensor cores take at a time
_CHUNK_THREADS = 128
# Fewer positions are not worth a segment: its sums are read and written as well.
_SHORTEST_SEGMENT = 512
_BLOCKS_A_MULTIPROCESSOR = 4

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
        return pad_width(self.dim), pad_width(self.value_dim)

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return 4 if self.dtype == "float32" else 2


def pad_width(dim: int) -> int:
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


def cupy_cuda() -> Any:
    """The module `cupy.cuda`, loaded where it is first needed: CuPy is an extra."""
    try:
        return importlib.import_module("cupy.cuda")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "CuPy launches the prototypes and is not installed; "
            "install linattn-cuda with its extra [cupy]."
        ) from error


@functools.cache
def compile_rung(
    source: str, kernels: tuple[str, ...], dtype: str, dim: int, value_dim: int, arch: str
) -> nvrtc.Image:
    """The kernels of `kernels/<source>.cu` for one dtype, pair of widths and architecture."""
    path = KERNELS / f"{source}.cu"
    arguments = f"<linattn::Dtype::{dtype}, {dim}, {value_dim}>"
    names = {f"linattn::prototypes::{kernel}{arguments}": kernel for kernel in kernels}
    try:
        image = nvrtc.compile_source(path.read_text("utf-8"), [*names], arch, (headers(), KERNELS))
    except RuntimeError as error:
        raise RuntimeError(f"NVRTC did not compile {path} for {arch}: {error}") from error
    return nvrtc.Image(image.code, {names[x]: symbol for x, symbol in image.symbols.items()})


def multiprocessors(device: torch.device) -> int:
    """How many the GPU has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_bytes(device: torch.device) -> int:
    """Shared memory that a block may ask for."""
    runtime = cupy_cuda().runtime
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, index))


def launch(run: Run, device: torch.device) -> None:
    """Launches on the current stream of the tensors' device, and waits for nothing."""
    cuda = cupy_cuda()
    driver = cuda.driver
    with torch.cuda.device(device):
        index = torch.cuda.current_device()
        cuda.runtime.setDevice(index)  # makes its context this thread's own, whoever calls
        stream = torch.cuda.current_stream(device).cuda_stream
        functions = _load(run.source, run.kernels, run.problem.dtype, run.problem.widths, index)
        arguments = (ctypes.c_void_p * 1)(ctypes.addressof(run.arguments))
        for kernel, grid, threads, shared in run.launches:
            try:
                if shared > _UNASKED:
                    attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    driver.funcSetAttribute(functions[kernel], attribute, shared)
                driver.launchKernel(
                    functions[kernel], *grid, 1, threads, 1, 1, shared, stream,
                    ctypes.addressof(arguments), 0,
                )  # fmt: skip
            except driver.CUDADriverError as error:
                raise RuntimeError(f"Kernel {kernel} was not launched: {error}.") from error


@functools.cache
def _load(
    source: str, kernels: tuple[str, ...], dtype: str, widths: tuple[int, int], index: int
) -> dict[str, int]:
    """Addresses of a rung's kernels in the GPU's context; they stay loaded."""
    driver = cupy_cuda().driver
    major, minor = torch.cuda.get_device_capability(index)
    machine = compile_rung(source, kernels, dtype, *widths, f"sm_{major}{minor}")
    module = driver.moduleLoadData(machine.code)
    return {x: driver.moduleGetFunction(module, name) for x, name in machine.symbols.items()}


GPU = Launcher(launch, multiprocessors)


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
        return KERNELS / f"{self.name}.cu"

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
        return compile_rung(self.name, self.kernels, DTYPES[dtype], pad_width(dim),
                                 pad_width(value_dim), arch).code  # fmt: skip

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


_ALL = tuple(DTYPES)
_HALF = (torch.bfloat16,)

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
