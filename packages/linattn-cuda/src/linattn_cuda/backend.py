"""What linattn_core sees: the kernels, on the tensors' own GPU and the caller's stream."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from linattn_cuda import _native
from linattn_cuda.device import (
    Gpu,
    find_build_fault,
    find_fault,
    find_missing_code,
    find_wrong_device,
    gpu_of,
    index_of,
)
from linattn_cuda.kernel_backend import KernelBackend


class CudaBackend(KernelBackend):
    """Runs calls on CUDA tensors, except those that `KernelBackend.refuses` names."""

    name = "cuda"
    speed = 20

    @property
    def description(self) -> str:
        """What the kernels were built with."""
        return f"CUDA kernels by {_native.built_with}" if _native.built_with else "no CUDA kernels"

    def unusable(self) -> str | None:
        return find_fault()

    def refuses_device(self, device: torch.device) -> str | None:
        """Anything but memory of a GPU, and a GPU that nothing was built for."""
        reason = find_build_fault() or find_wrong_device(device) or find_fault()
        return reason or find_missing_code(gpu_of(device), _native.built_with)

    def gpu(self, device: torch.device) -> Gpu:
        return gpu_of(device)

    @contextmanager
    def launching(self, device: torch.device) -> Iterator[int]:
        """The caller's stream on that GPU."""
        index = index_of(device)
        with torch.cuda.device(index):
            # torch leaves a thread alone that has not used CUDA before, as is right for GPU 0.
            _native.make_current(index)
            yield torch.cuda.current_stream(index).cuda_stream
