"""The memory that is free, and how much of it a call takes at its peak."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

MEMORY = Path("/proc/meminfo")
STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc_pid_clear_refs(5)
CONTAINER = Path("/sys/fs/cgroup")

Result = TypeVar("Result")


def free_bytes(device: torch.device) -> float:
    """What can still be taken: of a GPU's memory, or of the machine's within a container's limit.

    Where the system does not tell, half of the machine's memory stands in.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return float(torch.cuda.mem_get_info(device)[0])
    if not MEMORY.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    return min(_kernel_says(MEMORY, "MemAvailable"), _left_in_container())


def with_peak(device: torch.device, call: Callable[[], Result]) -> tuple[Result, float]:
    """What the call returns, and the bytes by which the memory in use rose while it ran.

    They are 0 on a CPU whose system does not tell (not Linux) or may not be asked to forget the
    highest mark so far.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = float(torch.cuda.memory_allocated(device))
        result = call()
        return result, torch.cuda.max_memory_allocated(device) - before
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return call(), 0.0
    before = _kernel_says(STATUS, "VmHWM")
    result = call()
    return result, _kernel_says(STATUS, "VmHWM") - before


def _kernel_says(path: Path, field: str) -> float:
    line = next(x for x in path.read_text().splitlines() if x.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024.0


def _left_in_container() -> float:
    """Files that are only cached give way, and do not count."""
    try:
        most = int((CONTAINER / "memory.max").read_text())
        held = int((CONTAINER / "memory.current").read_text())
        lines = (CONTAINER / "memory.stat").read_text().splitlines()
    except (OSError, ValueError):  # no container, or one without a limit
        return math.inf
    cached = next((int(x.split()[1]) for x in lines if x.startswith("inactive_file ")), 0)
    return float(most - held + cached)
