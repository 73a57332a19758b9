"""The free memory of a device, and the peak memory of a call."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import torch

from linattn_core import empty_cache

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc_pid_clear_refs(5)
SAMPLING_SECONDS = 0.0005
CGROUP = Path("/sys/fs/cgroup")
# Limit, usage, and the field of memory.stat that counts cached files, by version of the cgroup.
CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)

Result = TypeVar("Result")


def available_memory(device: torch.device) -> float:
    """Bytes that are free: on a GPU, or in main memory within the limit of the cgroup.

    GPU memory that torch's allocator keeps but does not use counts as free.
    """
    gc.collect()
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    return min(float(psutil.virtual_memory().available), *map(_left_in_cgroup, CGROUP_FILES))


def peak_memory(device: torch.device, call: Callable[[], Result]) -> tuple[Result, float]:
    """The call's result, and the bytes by which the memory in use rose while it ran.

    On a GPU, memory of torch's allocator. On a CPU, resident memory of the process: from the
    kernel's high-water mark or, where that cannot be reset, sampled every half millisecond.
    """
    gc.collect()
    if device.type == "cuda":
        return _peak_on_gpu(device, call)
    return_free_pages()  # using them again would not count as new memory
    before = _resident()
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        result, peak = _peak_by_sampling(call)
    else:
        result = call()
        peak = _high_water_mark()
    return result, max(0.0, peak - before)


def return_free_pages() -> None:
    """Returns free memory of backends and of the heap to the system, where the C library can."""
    empty_cache()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


def lacks_memory(error: BaseException) -> bool:
    """Whether an exception of Python or torch means that memory ran out."""
    # torch's allocator for the CPU raises a plain RuntimeError.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    reasons = ("allocate memory", "not enough memory", "Storage size calculation overflowed")
    return any(reason in str(error) for reason in reasons)


def _left_in_cgroup(files: tuple[str, str, str, str]) -> float:
    """The bytes free within a cgroup's limit; cached files, which can be evicted, count as free."""
    limit, usage, statistics, cached_files = files
    try:
        most = int((CGROUP / limit).read_text())
        used = int((CGROUP / usage).read_text())
        lines = (CGROUP / statistics).read_text().splitlines()
    except (OSError, ValueError):  # no cgroup, or one without a limit ("max")
        return math.inf
    fields = dict(line.split() for line in lines)
    return float(most - used + int(fields.get(cached_files, 0)))


def _peak_on_gpu(device: torch.device, call: Callable[[], Result]) -> tuple[Result, float]:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    result = call()
    torch.cuda.synchronize(device)
    return result, float(torch.cuda.max_memory_allocated(device) - before)


def _peak_by_sampling(call: Callable[[], Result]) -> tuple[Result, float]:
    finished = threading.Event()
    largest = [_resident()]

    def watch() -> None:
        while not finished.wait(SAMPLING_SECONDS):
            largest[0] = max(largest[0], _resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        finished.set()
        watcher.join()
    return result, max(largest[0], _resident())


def _resident() -> float:
    return float(psutil.Process().memory_info().rss)


def _high_water_mark() -> float:
    line = next(x for x in STATUS.read_text().splitlines() if x.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024.0
