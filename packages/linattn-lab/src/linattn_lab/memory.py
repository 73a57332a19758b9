"""The peak memory of a call."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import torch

from linattn_models.basics.memory import return_free_pages

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see proc_pid_clear_refs(5)
SAMPLING_SECONDS = 0.0005

Result = TypeVar("Result")


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
