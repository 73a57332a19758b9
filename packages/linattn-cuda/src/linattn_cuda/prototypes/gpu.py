"""Running a rung on a GPU: CuPy loads the machine code and launches it on torch's stream."""

from __future__ import annotations

import ctypes
import functools

import torch

from linattn_cuda.prototypes import compiler
from linattn_cuda.prototypes.problem import Launcher, Run

# A block gets so much shared memory without asking.
_UNASKED = 48 << 10


def multiprocessors(device: torch.device) -> int:
    """How many the GPU has."""
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def shared_bytes(device: torch.device) -> int:
    """Shared memory that a block may ask for."""
    runtime = compiler.cupy_cuda().runtime
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(runtime.deviceGetAttribute(runtime.cudaDevAttrMaxSharedMemoryPerBlockOptin, index))


def launch(run: Run, device: torch.device) -> None:
    """Launches on the current stream of the tensors' device, and waits for nothing.

    Raises:
        RuntimeError: a kernel was not launched; names it and the CUDA error.
    """
    cuda = compiler.cupy_cuda()
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
    driver = compiler.cupy_cuda().driver
    major, minor = torch.cuda.get_device_capability(index)
    machine = compiler.compiled(source, kernels, dtype, *widths, f"sm_{major}{minor}")
    module = driver.moduleLoadData(machine.code)
    return {x: driver.moduleGetFunction(module, name) for x, name in machine.symbols.items()}


GPU = Launcher(launch, multiprocessors)
