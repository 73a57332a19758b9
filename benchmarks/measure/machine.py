"""The machine: its hardware and software, and its limits, measured in the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import torch

from benchmarks.measure.cases import Settings
from benchmarks.measure.timer import interleave, largest_tensor, sample, stopwatch
from linattn_core import info

PACKAGES = (
    "torch", "linattn-core", "linattn-cpu", "linattn-cuda", "linattn-models", "cupy-cuda13x",
    "triton", "flash-linear-attention", "pytorch-fast-transformers", "transformers",
)  # fmt: skip
# The width of the matrices and the bytes that are copied: in a quick run, and by device.
QUICK_SIZES = (256, 2**22)
SIZES = {"cpu": (2_048, 2**28), "cuda": (8_192, 2**32)}
FUSED_STEPS = 100_000  # of the loop in registers: about 0.2 ms
SECONDS, ROUNDS = 5.0, (3, 30)
# Processors of one name and width may have them or not, and other kernels run with them. By the
# names of torch.cpu.get_capabilities().
INSTRUCTIONS = {"avx512_vnni": "VNNI", "avx512_bf16": "bfloat16", "amx_tile": "AMX"}


@dataclasses.dataclass(frozen=True)
class Limits:
    """Rates that no method can exceed here.

    Args:
        gemm_float32, gemm_bfloat16: operations per second (a multiply and an add are two); the
            latter of a GPU alone.
        copy_bandwidth: bytes per second, read and written both counted.
        fma_float32: operations per second of fused multiply-adds on numbers in registers; None on a
            GPU and without linattn-cpu.
    """

    gemm_float32: float
    gemm_bfloat16: float | None
    copy_bandwidth: float
    fma_float32: float | None = None

    def gemm(self, device: str) -> float | None:
        """The rate with which results are compared: of float32 on a CPU, of bfloat16 on a GPU."""
        return self.gemm_float32 if device == "cpu" else self.gemm_bfloat16


@dataclasses.dataclass(frozen=True)
class Machine:
    """The date, the code and the machine of a run, without names of hosts and paths.

    Args:
        hardware: processor, its instructions, cores, memory, system; before them the GPU, if it
            was measured.
        software: versions.
        backends: each live native backend.
    """

    date: str
    commit: str
    hardware: str
    software: str
    backends: str
    threads: int


def measure_limits(settings: Settings) -> Limits:
    """Returns the rates of matrix products, of multiply-adds, and of copying in memory."""
    size, count = QUICK_SIZES if settings.quick else SIZES[settings.device]
    if settings.device == "cuda":
        count = min(count, largest_tensor(torch.device("cuda")))
    numbers = torch.randn(2, size, size, device=settings.device)
    source = torch.zeros(count // 4, device=settings.device)
    product = 2.0 * size**3
    # By limit: the operations or bytes of a call, and the call.
    work: dict[str, tuple[float, Callable[[], object]]] = {
        "gemm_float32": (product, partial(torch.matmul, *numbers)),
        "copy_bandwidth": (2.0 * source.nbytes, partial(torch.zeros_like(source).copy_, source)),
    }
    if settings.device == "cuda":
        work["gemm_bfloat16"] = product, partial(torch.matmul, *numbers.bfloat16())
    else:
        with contextlib.suppress(ImportError):  # without linattn-cpu
            from linattn_cpu import _native

            call = partial(_native.fused_multiply_adds, settings.threads, FUSED_STEPS)
            work["fma_float32"] = call(), call
    timed, seconds = stopwatch(settings.device), 0.1 if settings.quick else SECONDS
    samplers = {name: partial(sample, call, timed, 0) for name, (_, call) in work.items()}
    samples, _ = interleave(samplers, seconds=seconds, rounds=ROUNDS)
    # The best, not the median: a limit is what the machine can do when nothing disturbs it.
    rates = {name: amount / min(samples[name]) for name, (amount, _) in work.items()}
    return Limits(gemm_bfloat16=rates.pop("gemm_bfloat16", None), **rates)


def describe_machine(settings: Settings) -> Machine:
    """Returns the hardware, the versions of the packages and the commit."""
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    hardware = _hardware(settings.device)
    return Machine(today, _commit(), hardware, _software(), _backends(), settings.threads)


def _cpu_information() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().split("\n\n", 1)[0].splitlines() if path.exists() else []
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _hardware(device: str) -> str:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cpu = _cpu_information().get("model name", platform.processor() or platform.machine())
    memory = psutil.virtual_memory().total / 2**30
    width, has = torch.backends.cpu.get_cpu_capability(), torch.cpu.get_capabilities()
    can = ", ".join([width, *(name for flag, name in INSTRUCTIONS.items() if has.get(flag))])
    words = (
        f"{cpu} ({can}), {cores} cores, {memory:.1f} GiB, {platform.system()} {platform.machine()}"
    )
    if device == "cpu":
        return words
    gpu = torch.cuda.get_device_properties(0)
    return (
        f"{gpu.name}, {gpu.multi_processor_count} multiprocessors, "
        f"{gpu.total_memory / 2**30:.1f} GiB, capability {gpu.major}.{gpu.minor}, "
        f"CUDA {torch.version.cuda}; {words}"
    )


def _software() -> str:
    known = {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()}
    packages = [f"{name} {known[name]}" for name in PACKAGES if name in known]
    return ", ".join([f"Python {platform.python_version()}", *packages])


def _backends() -> str:
    """The native backends that are live, by the lines of linattn_core.info."""
    lines = [" ".join(line.split()) for line in info.lines() if line.startswith("  ")]
    live = [line for line in lines if " live (" in line and not line.startswith("reference")]
    return "; ".join(live) or "reference"


def _commit() -> str:
    """The short commit of the checkout, with `-dirty` where tracked code differs from it.

    Documents may differ: results are written into them, one theme after the other.
    """
    try:
        commit = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ":/", ":!/docs")
    except FileNotFoundError:
        return "unknown"
    except subprocess.CalledProcessError:
        return "uncommitted"
    return commit + "-dirty" * bool(changed)


def git(*arguments: str) -> str:
    """What git prints about this checkout.

    Raises:
        FileNotFoundError: there is no git.
        subprocess.CalledProcessError: it failed; this may be no checkout.
    """
    command = ["git", "-C", str(Path(__file__).parent), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
