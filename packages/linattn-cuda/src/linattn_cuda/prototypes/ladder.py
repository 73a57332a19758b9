"""The rungs, from the lowest: each one's idea, its source, and how its kernels are launched.

CuPy loads what NVRTC compiled, and launches it on torch's stream.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output
from linattn_core.checks import check_attention
from linattn_core.errors import quote
from linattn_core.native import address_and_strides
from linattn_core.pointwise import POINTWISE
from linattn_cuda import _native, device, nvrtc
from linattn_cuda.compiling import find_headers
from linattn_cuda.prototypes import plans
from linattn_cuda.prototypes.plans import CHUNK, DTYPES, Launch, Problem, pad_width

KERNELS = Path(__file__).parent / "kernels"
WIDEST = 128  # features and values of a head
# A block gets so much shared memory without asking.
_UNASKED = 48 << 10
_ELSEWHERE = 'pass backend="auto"'


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
            ValueError: tensors that are not on a GPU, or whose shapes, dtypes or map do not fit.
        """
        query, key, value = query.detach(), key.detach(), value.detach()
        call = AttentionCall(query, key, value, True, feature_map, eps=eps)
        call = check_attention(call, "cupy", enable_gqa=False)
        reason = refuses_everywhere(call) or device.find_wrong_device(call.device) or find_fault()
        if reason is not None:
            raise ValueError(f"rung {self.name!r} cannot run this call: {reason}")
        return self.run(call).out

    def run(
        self,
        call: AttentionCall,
        launcher: Launcher | None = None,
        multiprocessors: int | None = None,
    ) -> Output:
        """The output and the denominators (B, H, N); on the tensors' GPU unless told otherwise.

        Args:
            call: one that `refuses_everywhere` lets pass.
            launcher: what launches the kernels, as the emulation of a GPU.
            multiprocessors: how many blocks run side by side, at least.
        """
        value = call.value
        problem = Problem.of(call, multiprocessors or device.gpu_of(value.device).multiprocessors)
        out = value.new_empty(value.shape)
        normalizer = value.new_empty(value.shape[:3], dtype=torch.float32)
        if normalizer.numel():
            kept = problem.blocks * problem.segments if len(self.kernels) > 1 else 0
            sums = value.new_empty(kept * problem.state_numbers, dtype=torch.float32)
            tensors = (Tensor4(*address_and_strides(x)) for x in (*call[:3], out))
            arguments = Arguments(
                *tensors, normalizer.data_ptr(), sums.data_ptr(), problem.heads,
                problem.length, problem.segment, problem.dim, problem.value_dim,
                int(_native.FeatureMap.__members__[call.feature_map]), call.eps,
            )  # fmt: skip
            (launcher or _launch)(self, problem, arguments, value.device)
        return Output(out, normalizer, None)

    def compile(
        self, arch: str, *, dtype: torch.dtype = torch.bfloat16, dim: int = 64, value_dim: int = 64
    ) -> bytes:
        """Machine code of all its kernels for an architecture as "sm_90"; needs no GPU.

        Raises:
            RuntimeError: NVRTC did not compile it; the message is its log.
        """
        return _compile(self, DTYPES[dtype], pad_width(dim), pad_width(value_dim), arch).code

    def shared_bytes(self, dim: int, value_dim: int, dtype: torch.dtype) -> int:
        """Shared memory that its largest block asks for."""
        problem = Problem(1, 1, 2 * CHUNK, dim, value_dim, DTYPES[dtype], CHUNK)
        return max(launch.shared for launch in self.plan(problem))


Launcher = Callable[[Rung, Problem, Arguments, torch.device], None]


def refuses_everywhere(call: AttentionCall) -> str | None:
    """What no rung does on any machine, as a sentence; None for a call that rungs take."""
    if call.requires_grad:
        return f"its rungs are forward only; {_ELSEWHERE} where gradients are needed."
    if not call.is_causal:
        return f"its rungs are causal and is_causal is False; {_ELSEWHERE}."
    taken_by_none = ("attn_mask", "key_lengths", "cu_seqlens", "initial_state", "return_state")
    for name in (*taken_by_none, "log_decay", "return_normalizer"):
        value = getattr(call, name)
        if value is not None and value is not False:
            return f"its rungs take no {name}; {_ELSEWHERE}."
    if not call.normalize or call.heads != call.kv_heads:
        return f"its rungs normalize and have no groups of heads; {_ELSEWHERE}."
    dtypes = {call.query_dtype, call.value_dtype}
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        names = " and ".join(sorted(str(x).removeprefix("torch.") for x in dtypes))
        return f"its rungs take float32, bfloat16 or float16 alone and got {names}; {_ELSEWHERE}."
    if call.feature_map not in POINTWISE:
        return f"its rungs apply {', '.join(POINTWISE)} and no {quote(call.feature_map)}."
    if max(call.feature_dim, call.value_dim) > WIDEST:
        return (
            f"its rungs take features and values of up to {WIDEST} and got {call.feature_dim} and "
            f"{call.value_dim}; {_ELSEWHERE}."
        )
    return None


@functools.cache
def find_missing_cupy() -> str | None:
    """None if CuPy is installed, or what to do, as a sentence."""
    if find_spec("cupy") is None:
        return "CuPy is not installed; install linattn-cuda with its extra [cupy]."
    return None


def find_fault() -> str | None:
    """Why no rung can run in this process, as a sentence; None if CuPy and a GPU are at hand."""
    return find_missing_cupy() or device.find_fault()


@functools.cache
def _compile(rung: Rung, dtype: str, dim: int, value_dim: int, arch: str) -> nvrtc.Image:
    """The rung's kernels for one dtype, pair of widths and architecture."""
    arguments = f"<linattn::Dtype::{dtype}, {dim}, {value_dim}>"
    names = {f"linattn::prototypes::{kernel}{arguments}": kernel for kernel in rung.kernels}
    source, folders = rung.source.read_text("utf-8"), (find_headers(), KERNELS)
    try:
        image = nvrtc.compile_source(source, [*names], arch, folders)
    except RuntimeError as error:
        raise RuntimeError(f"NVRTC did not compile {rung.source} for {arch}: {error}") from error
    return nvrtc.Image(image.code, {names[x]: symbol for x, symbol in image.symbols.items()})


def _cupy_cuda() -> Any:
    """`cupy.cuda`, of an extra: loaded where it is first needed."""
    return importlib.import_module("cupy.cuda")


def _launch(rung: Rung, problem: Problem, arguments: Arguments, on: torch.device) -> None:
    """Launches on the current stream of the tensors' device, and waits for nothing."""
    driver = _cupy_cuda().driver
    with torch.cuda.device(on):
        index = torch.cuda.current_device()
        _cupy_cuda().runtime.setDevice(index)  # makes its context this thread's own, whoever calls
        stream = torch.cuda.current_stream(on).cuda_stream
        functions = _load(rung, problem.dtype, problem.widths, index)
        handed = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        for kernel, grid, threads, shared in rung.plan(problem):
            try:
                if shared > _UNASKED:
                    attribute = driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                    driver.funcSetAttribute(functions[kernel], attribute, shared)
                driver.launchKernel(
                    functions[kernel], *grid, 1, threads, 1, 1, shared, stream,
                    ctypes.addressof(handed), 0,
                )  # fmt: skip
            except driver.CUDADriverError as error:
                raise RuntimeError(f"Kernel {kernel} was not launched: {error}.") from error


@functools.cache
def _load(rung: Rung, dtype: str, widths: tuple[int, int], index: int) -> dict[str, int]:
    """Addresses of a rung's kernels in the GPU's context; they stay loaded."""
    driver = _cupy_cuda().driver
    major, minor = torch.cuda.get_device_capability(index)
    machine = _compile(rung, dtype, *widths, f"sm_{major}{minor}")
    module = driver.moduleLoadData(machine.code)
    return {x: driver.moduleGetFunction(module, name) for x, name in machine.symbols.items()}


_ALL = tuple(DTYPES)
_HALF = (torch.bfloat16,)
_RUNGS = (
    Rung(
        "recurrent",
        "The paper's algorithm: one block a head, one position at a time, S in registers; feature "
        "map and normalizer fused.",
        ("recurrent",), plans.plan_recurrent, (7, 5), _ALL,
    ),
    Rung(
        "chunked",
        "A chunk of positions a step: the masked product within it, S between chunks.",
        ("chunked",), plans.plan_chunked, (7, 5), _ALL,
    ),
    Rung(
        "tensor_cores",
        "The chunk's products on tensor cores, in bfloat16 with float32 sums.",
        ("tensor_cores",), plans.plan_tensor_cores, (8, 0), _HALF,
    ),
    Rung(
        "overlapped",
        "The next chunk is copied while this one is computed.",
        ("overlapped",), plans.plan_overlapped, (8, 0), _HALF,
    ),
    Rung(
        "split",
        "The sequence in segments, for few heads and long sequences: sums, starts, outputs.",
        ("segment_sums", "segment_starts", "segment_outputs"), plans.plan_split, (8, 0), _HALF,
    ),
)  # fmt: skip

#: The rungs by name, from the lowest.
LADDER = {rung.name: rung for rung in _RUNGS}
