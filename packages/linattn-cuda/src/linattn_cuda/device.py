"""What kernels depend on: the GPU, and whether there is one."""

from __future__ import annotations

import functools
import re
from typing import NamedTuple

import torch

from linattn_cuda import _native

# The first whose tensor cores the kernels know, and the first that CUDA 13 compiles for.
OLDEST_CAPABILITY = (7, 5)


class Gpu(NamedTuple):
    """What a GPU offers, as far as a launch depends on it.

    Attributes:
        name: for people.
        capability: major and minor version.
        multiprocessors: how many blocks run side by side, at least.
        shared_bytes: shared memory that a block may ask for.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int


@functools.cache
def unusable() -> str | None:
    """Why nothing can run in this process, as a sentence; None if a GPU is at hand."""
    if not _native.built_with:
        return (
            "linattn-cuda was built without its CUDA kernels: no working nvcc was found, or "
            "LINATTN_CUDA was OFF; install the CUDA toolkit and build linattn-cuda again with "
            "LINATTN_CUDA=ON, which says what is missing."
        )
    if not torch.backends.cuda.is_built():
        return (
            f"torch {torch.__version__} was built without CUDA and has no tensors on a GPU; "
            "install a torch that is built for CUDA."
        )
    if not torch.cuda.is_available():
        return "torch finds no GPU, or no driver for it; see whether `nvidia-smi` lists one."
    try:
        _native.device_attributes(0)
    except RuntimeError as error:  # a driver that is new enough for torch and not for the kernels
        return f"{error} The kernels need a newer driver than torch does; update it."
    return None


@functools.cache
def gpu_at(index: int) -> Gpu:
    """The GPU of that number."""
    major, minor, multiprocessors, shared_bytes = _native.device_attributes(index)
    name = f"GPU {index} ({torch.cuda.get_device_name(index)})"
    return Gpu(name, (major, minor), multiprocessors, shared_bytes)


def without_code(gpu: Gpu, built_with: str) -> str | None:
    """Why the module holds nothing that the GPU can run; None if it does.

    Machine code runs on its own generation from its own minor version on, and what was built for
    the latest is compiled by the driver for later ones.
    """
    named = re.findall(r"\d+", built_with.rpartition(" sm ")[2])
    built = [divmod(int(x), 10) for x in named]
    if not built or gpu.capability > max(built):
        return None
    if any(x[0] == gpu.capability[0] and x <= gpu.capability for x in built):
        return None
    return (
        f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]} and the "
        f"kernels were built by {built_with}; build linattn-cuda with CUDAARCHS=native there."
    )
