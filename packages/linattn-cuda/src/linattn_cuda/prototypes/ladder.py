"""The rungs, from the lowest: their kernels, and how they are launched; their files say the ideas.

CuPy compiles a rung's file when it is first called. Its kernels run on torch's stream.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output
from linattn_core.checks import check_attention
from linattn_core.errors import quote
from linattn_core.native import address_and_strides, new_output
from linattn_core.pointwise import POINTWISE
from linattn_cuda import _native, device

KERNELS = Path(__file__).parent / "kernels"
# The device headers were installed beside the compiled module.
FOLDERS = (Path(_native.__file__).parent / "include", KERNELS)
#: Names of the dtypes as the headers spell them; a kernel is compiled for one.
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
WIDEST = 128  # features and values of a head
CHUNK = 64  # positions that the rungs on tensor cores take at a time
_THREADS = 128  # of their blocks
# A shorter segment is not worth it: its sums are read and written as well.
_SHORTEST_SEGMENT = 512
_BLOCKS_PER_MULTIPROCESSOR = 4
ELSEWHERE = 'pass backend="auto"'
# What every rung takes of these fields of a call.
_ALONE = {
    "is_causal": True, "normalize": True, "requires_grad": False, "return_state": False,
    "return_normalizer": False, "attn_mask": None, "key_lengths": None, "cu_seqlens": None,
    "initial_state": None, "log_decay": None,
}  # fmt: skip


class Arguments(ctypes.Structure):
    """`linattn::prototypes::Call`; a tensor is its address, and its strides in elements."""

    _fields_ = [
        *((name, ctypes.c_longlong * 5) for name in ("query", "key", "value", "out")),
        *((name, ctypes.c_void_p) for name in ("normalizer", "sums")),
        *((name, ctypes.c_longlong) for name in ("heads", "length", "segment")),
        *((name, ctypes.c_int) for name in ("dim", "value_dim", "map")),
        ("eps", ctypes.c_float),
    ]


class Problem(NamedTuple):
    """The sizes of a call.

    Attributes:
        blocks: heads of all sequences.
        length, dim, value_dim: N, D and M, the widths in whole tiles of 16.
        segment: positions that one block walks where the sequence is split.
        itemsize: bytes of a number.
    """

    blocks: int
    length: int
    dim: int
    value_dim: int
    segment: int
    itemsize: int

    @classmethod
    def of(cls, call: AttentionCall, multiprocessors: int) -> Problem:
        """With as many segments in whole chunks as keep a GPU busy, and no more."""
        blocks, length = call.batch * call.heads, call.query_length
        wanted = _BLOCKS_PER_MULTIPROCESSOR * multiprocessors // max(1, blocks)
        segments = max(1, min(wanted, length // _SHORTEST_SEGMENT))
        segment = max(1, -(-length // (segments * CHUNK))) * CHUNK
        widths = pad_width(call.feature_dim), pad_width(call.value_dim)
        return cls(blocks, length, *widths, segment, call.value_dtype.itemsize)

    @property
    def segments(self) -> int:
        """Pieces of a sequence."""
        return -(-self.length // self.segment)

    @property
    def state_numbers(self) -> int:
        """Numbers of a segment's sums."""
        return self.dim * (self.value_dim + 8)

    @property
    def tile_bytes(self) -> int:
        """A chunk in bfloat16, and the state as the tensor cores read it."""
        return 2 * (2 * CHUNK * (self.dim + 8) + (CHUNK + self.dim) * (self.value_dim + 8))

    @property
    def two_chunks(self) -> int:
        """The same, and the next chunk as it lies in global memory."""
        return self.tile_bytes + CHUNK * (2 * self.dim + self.value_dim) * self.itemsize


def pad_width(dim: int) -> int:
    """The width in whole tiles of 16, one at least."""
    return max(16, -(-dim // 16) * 16)


class Launch(NamedTuple):
    """One launch of a kernel: blocks along x and y, threads of a block, its shared memory."""

    kernel: str
    grid: tuple[int, int]
    threads: int
    shared: int


@dataclass(frozen=True)
class Rung:
    """One step of the ladder; its file says what it adds to the one below.

    Attributes:
        name: of the rung, and of its file under `kernels/`.
        plan: the launches that a problem takes.
        capability: the oldest GPU that it is compiled for.
        keeps: dtypes whose accuracy it keeps; others run, with that of bfloat16.
    """

    name: str
    plan: Callable[[Problem], list[Launch]]
    capability: tuple[int, int] = (8, 0)
    keeps: tuple[torch.dtype, ...] = (torch.bfloat16,)

    @property
    def source(self) -> Path:
        """The file that holds the rung's kernels, and the words that explain them."""
        return KERNELS / f"{self.name}.cu"

    @property
    def kernels(self) -> tuple[str, ...]:
        """Templates of the file, in the order of their launch."""
        return tuple(launch.kernel for launch in self.plan(Problem(1, 2 * CHUNK, 16, 16, CHUNK, 2)))

    def attention(
        self, query: Tensor, key: Tensor, value: Tensor, *, feature_map: str = "elu"
    ) -> Tensor:
        """Causal `linear_attention` on a GPU by this rung, without gradients.

        Tensors are all float32, bfloat16 or float16, with any strides, D and M up to 128, and the
        map is "elu", "relu" or "identity".

        Raises:
            ValueError: tensors that are not on a GPU, or whose shapes, dtypes or map do not fit.
        """
        call = AttentionCall(query, key, value, True, feature_map)
        call = check_attention(call, "cupy", enable_gqa=False)
        if (reason := self.refuses(call)) is not None:
            raise ValueError(f"rung {self.name!r} cannot run this call: {reason}")
        return self.run(call).out

    def refuses(self, call: AttentionCall) -> str | None:
        """What the rung leaves to the backend "cuda", and machines where nothing runs."""
        # In this order: a call on CPU tensors must not start CUDA.
        reason = find_refusal(call) or device.find_wrong_device(call.device) or find_fault()
        if reason is not None:
            return reason
        gpu, needed = device.gpu_of(call.device), self.plan(Problem.of(call, 1))
        shared = max(launch.shared for launch in needed)
        if gpu.capability >= self.capability and gpu.shared_bytes >= shared:
            return None
        return (
            f"its rung {self.name} needs compute capability {self.capability} and {shared:,} bytes "
            f"of shared memory a block; {gpu.name} has {gpu.capability} and {gpu.shared_bytes:,}; "
            f"{ELSEWHERE}."
        )

    def run(self, call: AttentionCall) -> Output:
        """The same as `launch`, on the tensors' GPU."""
        return self.launch(call, _launch, device.gpu_of(call.device).multiprocessors)

    def launch(self, call: AttentionCall, launcher: Launcher, multiprocessors: int) -> Output:
        """The output and the denominators (B, H, N) of a call that `find_refusal` lets pass."""
        problem, output = Problem.of(call, multiprocessors), new_output(call)
        if output.normalizer.numel():
            states = problem.blocks * problem.segments if len(self.kernels) > 1 else 0
            sums = call.value.new_empty(states * problem.state_numbers, dtype=torch.float32)
            tensors = (address_and_strides(x) for x in (*call[:3], output.out))
            arguments = Arguments(
                *tensors, output.normalizer.data_ptr(), sums.data_ptr(), call.heads, problem.length,
                problem.segment, call.feature_dim, call.value_dim,
                int(_native.FeatureMap.__members__[call.feature_map]), call.eps,
            )  # fmt: skip
            launcher(self, problem, arguments, call.value)
        return output

    def symbols(self, problem: Problem, dtype: torch.dtype) -> dict[str, str]:
        """Its kernels' instances for a problem as C++ names them, by the kernels' names."""
        arguments = f"<linattn::Dtype::{DTYPES[dtype]}, {problem.dim}, {problem.value_dim}>"
        return {kernel: f"linattn::prototypes::{kernel}{arguments}" for kernel in self.kernels}


# Launches a rung's kernels for tensors like the last argument.
Launcher = Callable[[Rung, Problem, Arguments, Tensor], None]


def find_refusal(call: AttentionCall) -> str | None:
    """What no rung does on any machine, as a sentence; None for a call that rungs take."""
    dtypes = {call.query_dtype, call.value_dtype}
    wide = max(call.feature_dim, call.value_dim)
    for name, usual in _ALONE.items():
        if getattr(call, name) is not usual:
            return f"its rungs compute forward only, with {name}={usual}; {ELSEWHERE}."
    if call.heads != call.kv_heads or len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        names = " and ".join(sorted(str(x).removeprefix("torch.") for x in dtypes))
        got = f"{call.heads} and {call.kv_heads} heads of {names}; {ELSEWHERE}"
        wanted = "as many heads of keys as of queries, in one dtype of 16 or 32 bits"
        return f"its rungs need {wanted}, not {got}."
    if call.feature_map not in POINTWISE or wide > WIDEST:
        got = f"{quote(call.feature_map)} and {wide}; {ELSEWHERE}"
        return f"its rungs take {', '.join(POINTWISE)} and up to {WIDEST} numbers, not {got}."
    return None


def find_fault() -> str | None:
    """Why no rung can run in this process, as a sentence; None if CuPy and a GPU are at hand."""
    if find_spec("cupy") is None:
        return "CuPy is not installed; install linattn-cuda with its extra [cupy]."
    return device.find_fault()


def _launch(rung: Rung, problem: Problem, arguments: Arguments, like: Tensor) -> None:
    """Launches on the current stream of the tensor's device, and waits for nothing."""
    cuda = importlib.import_module("cupy.cuda")  # of an extra
    with torch.cuda.device(like.device):
        index = torch.cuda.current_device()
        cuda.runtime.setDevice(index)  # makes its context this thread's own, whoever calls
        stream = torch.cuda.current_stream(index).cuda_stream
        symbols = rung.symbols(problem, like.dtype)
        module = _load(rung.source, tuple(symbols.values()))
        handed = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        for kernel, grid, threads, shared in rung.plan(problem):
            function = module.get_function(symbols[kernel])
            if shared > function.max_dynamic_shared_size_bytes:
                function.max_dynamic_shared_size_bytes = shared
            cuda.driver.launchKernel(
                function.kernel.ptr, *grid, 1, threads, 1, 1, shared, stream,
                ctypes.addressof(handed), 0,
            )  # fmt: skip


@functools.cache
def _load(file: Path, symbols: tuple[str, ...]) -> Any:
    """A module of CuPy, which compiles it for each GPU at its first launch there."""
    options = ("--std=c++17", *(f"-I{folder}" for folder in FOLDERS))
    return importlib.import_module("cupy").RawModule(
        code=file.read_text("utf-8"), options=options, name_expressions=symbols
    )


def _plan_recurrent(x: Problem) -> list[Launch]:
    """A block a head, a thread a value."""
    threads = -(-(x.value_dim + 1) // 32) * 32
    return [Launch("recurrent", (x.blocks, 1), threads, 4 * (2 * x.dim + 1))]


def _plan_chunked(x: Problem) -> list[Launch]:
    """Wide rows take shorter chunks."""
    chunk = 16 if x.dim + x.value_dim > 128 else 32
    numbers = chunk * (2 * (x.dim + 1) + x.value_dim + 1 + chunk) + x.dim * (x.value_dim + 1)
    return [Launch("chunked", (x.blocks, 1), 256, 4 * numbers)]


def _plan_split(x: Problem) -> list[Launch]:
    """A block a segment: sums of all but the last, states before each, outputs."""
    sums = Launch("segment_sums", (x.blocks, x.segments - 1), _THREADS, x.two_chunks)
    starts = Launch("segment_starts", (x.blocks, -(-x.state_numbers // 256)), 256, 0)
    outputs = Launch("segment_outputs", (x.blocks, x.segments), _THREADS, x.two_chunks)
    return [sums, starts, outputs] if x.segments > 1 else [starts, outputs]


def _plan_one(kernel: str, shared: Callable[[Problem], int]) -> Callable[[Problem], list[Launch]]:
    return lambda x: [Launch(kernel, (x.blocks, 1), _THREADS, shared(x))]


_RUNGS = (
    Rung("recurrent", _plan_recurrent, (7, 5), tuple(DTYPES)),
    Rung("chunked", _plan_chunked, (7, 5), tuple(DTYPES)),
    Rung("tensor_cores", _plan_one("tensor_cores", lambda x: x.tile_bytes)),
    Rung("overlapped", _plan_one("overlapped", lambda x: x.two_chunks)),
    Rung("split", _plan_split),
)

#: The rungs by name, from the lowest.
LADDER = {rung.name: rung for rung in _RUNGS}


def choose_rung(dtype: torch.dtype) -> Rung:
    """The last rung that keeps the dtype's accuracy."""
    return next(rung for rung in reversed(LADDER.values()) if dtype in rung.keeps)
