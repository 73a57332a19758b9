"""The backend "emulated": linattn_cuda's own, its kernels running on the CPU under an emulation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType

import pytest
import torch

from linattn_core import registry
from linattn_core.registry import ENTRY_POINT_GROUP, reload_backends
from linattn_cuda.device import Gpu
from linattn_cuda.kernel_backend import KernelBackend
from tests.cuda.emulated_build import emulated_module

# One block of threads walks each sequence; or sequences are cut, a block for each segment, which
# begins with what was summed up before.
WALKING, CUT = NAMES = "emulated", "emulated-segments"
H100 = Gpu("an emulated H100", (9, 0), 132, 232_448)


class EmulatedBackend(KernelBackend):
    """Takes CPU tensors; "auto" never takes it."""

    name = WALKING
    speed = -1
    description = "CUDA kernels under an emulation"
    segments = 1

    def __init__(self, gpu: Gpu = H100, native: ModuleType | None = None) -> None:
        self.native = native or emulated_module()
        self.on = gpu

    def refuses_device(self, device: torch.device) -> str | None:
        return None if device.type == "cpu" else f"it runs on CPU tensors and not on {device}."

    def gpu(self, device: torch.device) -> Gpu:
        return self.on

    def launching(self, device: torch.device) -> AbstractContextManager[int]:
        return nullcontext(0)


class CutBackend(EmulatedBackend):
    name = CUT
    segments = 3


_ENTRIES = (
    EntryPoint(WALKING, "tests.cuda.emulated:EmulatedBackend", ENTRY_POINT_GROUP),
    EntryPoint(CUT, "tests.cuda.emulated:CutBackend", ENTRY_POINT_GROUP),
)


@contextmanager
def registered() -> Iterator[None]:
    """They are live, beside what is installed."""
    emulated_module()  # where it cannot be built, the test is skipped and not the backend
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            registry, "entry_points", lambda group: (*entry_points(group=group), *_ENTRIES)
        )
        reload_backends()
        yield
    reload_backends()
