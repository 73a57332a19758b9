"""The free memory of a device."""

from __future__ import annotations

import ctypes
import gc
import math
import sys
from pathlib import Path

import psutil
import torch

from linattn_core import empty_cache

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


def available_memory(device: torch.device) -> float:
    """Bytes that are free: on a GPU, or in main memory within the limit of the cgroup.

    GPU memory that torch's allocator keeps but does not use counts as free.
    """
    gc.collect()
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    return min(float(psutil.virtual_memory().available), *map(_left_in_cgroup, CGROUP_FILES))


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
