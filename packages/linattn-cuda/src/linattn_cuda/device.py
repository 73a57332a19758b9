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
        multiprocessors: how many it has.
        shared_bytes: shared memory that a block may ask for.
    """

    name: str
    capability: tuple[int, int]
    multiprocessors: int
    shared_bytes: int


@functools.cache
def find_build_fault() -> str | None:
    """Why nothing can run in this process, as far as that can be told without starting CUDA.

    A process that has started CUDA cannot be forked, so calls on CPU tensors ask for no more.
    """
    if torch.version.hip is not None:
        return f"torch {torch.__version__} is built for AMD GPUs; install linattn-triton for them."
    if not _native.built_with:
        return (
            "linattn-cuda was built without its CUDA kernels; install linattn-triton, which needs "
            "no nvcc, or build it again with LINATTN_CUDA=ON where there is one."
        )
    if not torch.backends.cuda.is_built():
        return (
            f"torch {torch.__version__} was built without CUDA and has no tensors on a GPU; "
            "install a torch that is built for CUDA."
        )
    return None


@functools.cache
def find_fault() -> str | None:
    """Why nothing can run in this process, as a sentence; None if a GPU is at hand."""
    reason = find_build_fault()
    if reason is not None:
        return reason
    if not torch.cuda.is_available():
        return "torch finds no GPU, or no driver for it; see whether `nvidia-smi` lists one."
    try:
        _native.device_attributes(0)
    except RuntimeError as error:
        # A driver that is new enough for torch and not for the kernels.
        return f"{error} The kernels need a newer driver than torch does; update it."
    return None


def find_wrong_device(device: torch.device) -> str | None:
    """Why kernels cannot run on tensors there, as a sentence; None for a GPU."""
    if device.type == "cuda":
        return None
    return f"it runs on CUDA tensors and these are on {device}; move them to a GPU."


def index_of(device: torch.device) -> int:
    """The number of a GPU; that of the current one where the device has none."""
    return torch.cuda.current_device() if device.index is None else device.index


def gpu_of(device: torch.device) -> Gpu:
    """What the GPU offers; asked for once."""
    return _gpu_at(index_of(device))


@functools.cache
def _gpu_at(index: int) -> Gpu:
    major, minor, multiprocessors, shared_bytes = _native.device_attributes(index)
    name = f"GPU {index} ({torch.cuda.get_device_name(index)})"
    return Gpu(name, (major, minor), multiprocessors, shared_bytes)


class Code(NamedTuple):
    """What a module was compiled to.

    Attributes:
        machine: architectures with machine code, as "90". It runs on GPUs of the same major version
            from its own minor version on; that of "90a", on 9.0 alone.
        ptx: architectures with PTX, which the driver compiles for these GPUs and all later ones.
    """

    machine: list[str]
    ptx: list[str]

    @classmethod
    def read(cls, built_with: str) -> Code:
        """From what CMake wrote, as "nvcc 13.0.88 for sm 75, 90, PTX 120"."""
        machine, _, ptx = built_with.rpartition(" sm ")[2].partition("PTX")
        return cls(_architectures(machine), _architectures(ptx))

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """Whether a GPU of that capability finds code here."""
        return any(_runs_machine_code(x, capability) for x in self.machine) or any(
            _capability(x) <= capability for x in self.ptx if x.isdigit()
        )


def _architectures(names: str) -> list[str]:
    return re.findall(r"\d+[af]?", names)


def _capability(architecture: str) -> tuple[int, int]:
    major, minor = divmod(int(architecture.rstrip("af")), 10)
    return major, minor


def _runs_machine_code(architecture: str, capability: tuple[int, int]) -> bool:
    built = _capability(architecture)
    if architecture.endswith("a"):
        return built == capability
    return built[0] == capability[0] and built <= capability


@functools.cache
def find_missing_code(gpu: Gpu, built_with: str) -> str | None:
    """Why there is no code that the GPU can run; None if there is."""
    if Code.read(built_with).runs_on(gpu.capability):
        return None
    return (
        f"{gpu.name} has compute capability {gpu.capability[0]}.{gpu.capability[1]} and the "
        f"kernels were built by {built_with}; build linattn-cuda with CUDAARCHS=native there, or "
        "install linattn-triton."
    )
