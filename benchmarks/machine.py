"""What this machine is, and how fast it can be at best, measured in the same run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.registry import Method
from benchmarks.timer import interleave
from linattn_core.registry import installed

INSTRUCTION_SETS = (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"))
PACKAGES = ("linattn-core", "linattn-cpu", "linattn-models", "pytorch-fast-transformers")


@dataclasses.dataclass(frozen=True)
class Limits:
    """Rates that no method can exceed here.

    Args:
        gemm_float32, gemm_bfloat16: operations a second (a multiply and an add are two).
        copy_bandwidth: bytes a second, read and written both counted.
    """

    gemm_float32: float
    gemm_bfloat16: float
    copy_bandwidth: float


@dataclasses.dataclass(frozen=True)
class Machine:
    """The hardware and software that a result was taken with; names no host and no path.

    Args:
        backends: for each that was found, what is live of it: its instruction set, its threads.
        accelerator: the GPU with its driver, where the cases ran on one.
    """

    host_class: str
    cpu: str
    cores: int
    threads: int
    memory_gib: float
    system: str
    python: str
    torch: str
    packages: dict[str, str]
    backends: dict[str, str]
    allocator: str
    commit: str
    accelerator: str = ""


def measure_limits(*, quick: bool = False) -> Limits:
    """Returns the rates of square matrix products and of a copy that no cache holds."""
    size = 256 if quick else 2048
    elements = (1 if quick else 64) * 2**20
    pair = {
        kind: (torch.randn(size, size, dtype=kind), torch.randn(size, size, dtype=kind))
        for kind in (torch.float32, torch.bfloat16)
    }
    source, target = torch.zeros(elements), torch.zeros(elements)
    methods = [
        Method("float32", _no_check, lambda: pair[torch.float32][0] @ pair[torch.float32][1]),
        Method("bfloat16", _no_check, lambda: pair[torch.bfloat16][0] @ pair[torch.bfloat16][1]),
        Method("copy", _no_check, lambda: target.copy_(source)),
    ]
    measured = interleave(methods, seconds=0.1 if quick else 5.0, rounds=(3, 30))
    # The best, not the median: a limit is what the machine can do when nothing disturbs it.
    best = {name: min(values) for name, values in measured.samples.items()}
    return Limits(
        gemm_float32=2 * size**3 / best["float32"],
        gemm_bfloat16=2 * size**3 / best["bfloat16"],
        copy_bandwidth=2 * source.nbytes / best["copy"],
    )


def describe_machine(packages: Sequence[str] = PACKAGES) -> Machine:
    """Returns what is known of the hardware, the versions of the packages and the commit."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    information = _cpu_information()
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        host_class=f"{cores}-core-{_instruction_set(cpu_flags())}",
        cpu=information.get("model name", platform.processor() or platform.machine()),
        cores=cores or 1,
        threads=torch.get_num_threads(),
        memory_gib=round(pages / 2**30, 1),
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        torch=torch.__version__,
        packages={name: _version(name) for name in packages},
        backends=_backends(),
        allocator=_allocator(),
        commit=_commit(),
    )


def cpu_flags() -> frozenset[str]:
    """Returns the features of the processor by the kernel's names, such as "avx512_bf16"."""
    return frozenset(_cpu_information().get("flags", "").split())


def _no_check() -> None:
    return None


def _cpu_information() -> dict[str, str]:
    """The first processor's block of /proc/cpuinfo; empty where there is none."""
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    lines = path.read_text().split("\n\n", 1)[0].splitlines()
    pairs = (line.split(":", 1) for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, value in pairs}


def _instruction_set(flags: frozenset[str]) -> str:
    for flag, name in INSTRUCTION_SETS:
        if flag in flags:
            return name
    return platform.machine().replace("_", "-")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        by_path = importlib.util.find_spec(package.replace("-", "_")) is not None
        return "from its sources" if by_path else "not installed"


def _backends() -> dict[str, str]:
    return {
        found.name: f"not live: {found.failure}" if not found.backend else found.backend.description
        for found in installed()
    }


def _allocator() -> str:
    """The C library's allocator and its tunables, or the name of a preloaded one."""
    preloaded = [Path(name).name for name in os.environ.get("LD_PRELOAD", "").split(":") if name]
    tunables = os.environ.get("GLIBC_TUNABLES", "default settings")
    name = " ".join(platform.libc_ver()).strip() or platform.system()
    return f"{' '.join(preloaded) or name + ' malloc'}, {tunables}"


def _commit() -> str:
    """The short commit of the checkout, with `-dirty` where tracked files differ from it."""
    here = Path(__file__).parent
    try:
        answer = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude=*"],
            cwd=here, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return "unknown"
    return answer.stdout.strip() if answer.returncode == 0 else "uncommitted"
