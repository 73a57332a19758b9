"""Memory of freed tensors, kept for new ones while a model trains on a CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from linattn_models.basics.memory import return_free_pages

# Parameters of glibc's mallopt(3).
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
_NEVER = -1
# A call of mallopt ends glibc's own adjustment of the thresholds. These are where it ends for a
# process with large tensors.
_USUAL = {_MMAP_MAX: 65_536, _MMAP_THRESHOLD: 32 << 20, _TRIM_THRESHOLD: 64 << 20}
# Other variables than GLIBC_TUNABLES by which a user configures glibc's allocator.
_VARIABLES = (
    "MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_",
)  # fmt: skip


@contextmanager
def freed_memory_kept(device: torch.device | str = "cpu") -> Iterator[None]:
    """On a CPU with glibc, uses the memory of freed tensors again while the body runs.

    Every update of a model allocates and frees the same large tensors. By default, glibc gives
    their memory back to the system, which clears each page before it can be used again. Clearing
    them takes a tenth of an update of the paper's MNIST model. `train` runs in this context; use it
    around a training loop of your own.

    In the body, the process holds the most memory that was needed at once, and what fragmentation
    adds. After the body, memory goes back to the system. glibc's thresholds then have the values to
    which it moves them itself where tensors are large, and stay there.

    Do not use it twice at the same time, nested or in threads: when one body ends, the effect ends
    for all. It does nothing for other devices, with other C libraries, and where an environment
    variable (such as ``GLIBC_TUNABLES`` or ``MALLOC_MMAP_MAX_``) sets what this changes.

    Args:
        device: where the model is.
    """
    library = _glibc() if torch.device(device).type == "cpu" else None
    if library is None:
        yield
        return
    library.mallopt(_MMAP_MAX, 0)  # large tensors come from the heap, too
    library.mallopt(_TRIM_THRESHOLD, _NEVER)
    try:
        yield
    finally:
        for parameter, value in _USUAL.items():
            library.mallopt(parameter, value)
        return_free_pages()


def _glibc() -> Any:
    """The process's C library; None if it is not glibc, or its allocator was configured."""
    tuned = "malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned or any(name in os.environ for name in _VARIABLES):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
