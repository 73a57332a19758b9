"""Memory of freed tensors, kept for the next ones while a model trains on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

# Parameters of glibc's mallopt(3), with glibc's own values.
_TRIM_THRESHOLD, _USUAL_TRIM_THRESHOLD = -1, 128 * 1024
_MMAP_MAX, _USUAL_MMAP_MAX = -4, 65_536
_NEVER = 2**31 - 1


@contextmanager
def freed_memory_kept(device: torch.device) -> Iterator[None]:
    """On a CPU with glibc, keeps the memory of freed tensors for new ones while the body runs.

    Every step of training allocates and frees the same large tensors. By default, glibc gives their
    memory back to the system, which clears each page again when it is next used. That takes a tenth
    of a step of the paper's MNIST model. With this, a process holds the memory of its largest step
    until the body ends.

    Does nothing on other devices, with other C libraries, and where GLIBC_TUNABLES sets malloc.
    """
    mallopt = _mallopt() if device.type == "cpu" else None
    if mallopt is None:
        yield
        return
    mallopt(_MMAP_MAX, 0)  # large tensors too come from the heap
    mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        mallopt(_MMAP_MAX, _USUAL_MMAP_MAX)
        mallopt(_TRIM_THRESHOLD, _USUAL_TRIM_THRESHOLD)


def _mallopt() -> Callable[[int, int], int] | None:
    """glibc's mallopt; None if the process has another C library, or its user has set malloc."""
    if sys.platform != "linux" or "malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return None
    library = ctypes.CDLL(None)
    return library.mallopt if hasattr(library, "gnu_get_libc_version") else None
