"""The machine: its hardware and software, and its limits, measured in the same run."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import psutil
import torch
from pydantic import BaseModel

from linattn_core import backends, info
from linattn_core.registry import find_backend
from linattn_lab.timing import interleave, largest_tensor, sample, stopwatch

PACKAGES = (
    "torch", "linattn-core", "linattn-cpu", "linattn-cuda", "linattn-triton", "linattn-models",
    "cupy-cuda13x", "triton", "flash-linear-attention", "pytorch-fast-transformers", "transformers",
)  # fmt: skip
# The width of the matrices and the bytes that are copied: in a quick run, and by device.
QUICK_SIZES = (256, 2**22)
SIZES = {"cpu": (2_048, 2**28), "cuda": (8_192, 2**32)}
FUSED_STEPS = 100_000  # of the loop in registers: about 0.2 ms
SECONDS, ROUNDS = 5.0, (3, 30)
# Processors of one name and width may have them or not, and other kernels run with them. By the
# names of torch.cpu.get_capabilities().
INSTRUCTIONS = {"avx512_vnni": "VNNI", "avx512_bf16": "bfloat16", "amx_tile": "AMX"}
# What stands around the name of a GPU: "NVIDIA H100 80GB HBM3".
MAKER = re.compile(r"^NVIDIA |GeForce |Tesla | \d+GB\b.*")

Device = Literal["cpu", "cuda"]


class Machine(BaseModel, frozen=True):
    """The machine of a run, without names of hosts and paths.

    Args:
        hardware: processor, its instructions, cores, memory, system; before them the GPU, if it
            was measured.
        software: versions.
        backends: each live native backend.
        threads: of torch.
    """

    device: Device
    hardware: str
    software: str
    backends: str
    threads: int

    @property
    def gpu(self) -> str:
        """The GPU's name, such as "H200"; empty for a CPU."""
        name = MAKER.sub("", self.hardware.partition(",")[0]).strip()
        return name if self.device == "cuda" else ""

    @property
    def place(self) -> str:
        """What stands for the machine in names of files: "cpu", or the GPU, as "h200"."""
        return self.gpu.lower().replace(" ", "-") or self.device


class Limits(BaseModel, frozen=True):
    """Rates that no method can exceed here.

    Args:
        gemm_float32, gemm_bfloat16: operations per second (a multiply and an add are two); the
            latter of a GPU alone.
        copy_bandwidth: bytes per second, read and written both counted.
        fma_float32: operations per second of fused multiply-adds on numbers in registers; None on a
            GPU and without linattn-cpu.
    """

    gemm_float32: float
    copy_bandwidth: float
    gemm_bfloat16: float | None = None
    fma_float32: float | None = None

    def gemm(self, device: Device) -> float | None:
        """The rate with which results are compared: of float32 on a CPU, of bfloat16 on a GPU."""
        return self.gemm_float32 if device == "cpu" else self.gemm_bfloat16


def default_device() -> Device:
    """A GPU where there is one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def describe_machine(device: Device = "cpu", threads: int | None = None) -> Machine:
    """Returns the hardware, the versions of the packages and the live backends.

    Args:
        threads: those of torch by default.
    """
    return Machine(
        device=device, hardware=_hardware(device), software=_software(), backends=_backends(),
        threads=threads or torch.get_num_threads(),
    )  # fmt: skip


def measure_limits(
    device: Device = "cpu", threads: int | None = None, *, quick: bool = False
) -> Limits:
    """Returns the rates of matrix products, of multiply-adds, and of copying in memory.

    Args:
        threads: of the multiply-adds; those of torch by default.
        quick: small sizes and little time; the rates mean nothing.
    """
    size, count = QUICK_SIZES if quick else SIZES[device]
    if device == "cuda":
        count = min(count, largest_tensor(torch.device("cuda")))
    numbers = torch.randn(2, size, size, device=device)
    source = torch.zeros(count // 4, device=device)
    product = 2.0 * size**3
    # By limit: the operations or bytes of a call, and the call.
    work: dict[str, tuple[float, Callable[[], object]]] = {
        "gemm_float32": (product, partial(torch.matmul, *numbers)),
        "copy_bandwidth": (2.0 * source.nbytes, partial(torch.zeros_like(source).copy_, source)),
    }
    if device == "cuda":
        work["gemm_bfloat16"] = product, partial(torch.matmul, *numbers.bfloat16())
    elif multiply_adds := _find_multiply_adds():
        call = partial(multiply_adds, threads or torch.get_num_threads(), FUSED_STEPS)
        work["fma_float32"] = call(), call
    timed = stopwatch(device)
    samplers = {name: partial(sample, call, timed, 0) for name, (_, call) in work.items()}
    samples, _ = interleave(samplers, seconds=0.1 if quick else SECONDS, rounds=ROUNDS)
    # The best, not the median: a limit is what the machine can do when nothing disturbs it.
    return Limits(**{name: amount / min(samples[name]) for name, (amount, _) in work.items()})


def _find_multiply_adds() -> Callable[[int, int], int] | None:
    """A backend's function that multiplies and adds in registers; None without linattn-cpu."""
    name = "fused_multiply_adds"
    known = (getattr(find_backend(x), name, None) for x in backends())
    return next(filter(None, known), None)


def _hardware(device: Device) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    width, has = torch.backends.cpu.get_cpu_capability(), torch.cpu.get_capabilities()
    can = ", ".join([width, *(name for flag, name in INSTRUCTIONS.items() if has.get(flag))])
    words = (
        f"{_processor()} ({can}), {cores} cores, {memory:.1f} GiB, "
        f"{platform.system()} {platform.machine()}"
    )
    if device == "cpu":
        return words
    gpu = torch.cuda.get_device_properties(0)
    return (
        f"{gpu.name}, {gpu.multi_processor_count} multiprocessors, "
        f"{gpu.total_memory / 2**30:.1f} GiB, capability {gpu.major}.{gpu.minor}, "
        f"CUDA {torch.version.cuda}; {words}"
    )


def _processor() -> str:
    """Its name by /proc/cpuinfo, or what Python knows of it."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def _software() -> str:
    known = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    packages = [f"{name} {known[name]}" for name in PACKAGES if name in known]
    return ", ".join([f"Python {platform.python_version()}", *packages])


def _backends() -> str:
    """The native backends that are live, by the lines of linattn_core.info."""
    lines = [" ".join(line.split()) for line in info.lines() if line.startswith("  ")]
    live = [line for line in lines if " live (" in line and not line.startswith("reference")]
    return "; ".join(live) or "reference"
