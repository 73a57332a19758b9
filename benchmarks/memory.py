"""Peak resident memory of one call, taken in a process of its own; and the memory that is free."""

from __future__ import annotations

import ctypes
import gc
import math
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.registry import NotMeasured

STATUS = Path("/proc/self/status")
MEMORY = Path("/proc/meminfo")
CONTAINER = Path("/sys/fs/cgroup")  # of the second version, where the process may see its own
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = "5"  # see proc_pid_clear_refs(5)
SAMPLING_SECONDS = 0.0005

Make = Callable[..., Callable[[], object]]


def available_bytes(device: str = "cpu") -> float:
    """Returns the bytes that can still be taken on the device without pushing anything out."""
    if device != "cpu":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + kept)
    if not MEMORY.exists():  # not Linux: what half of the machine holds is a cautious guess
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2
    return min(_field(MEMORY, "MemAvailable"), _left_in_container())


def _left_in_container() -> float:
    """What the limit of the process's control group leaves, where it has one."""
    try:
        most = (CONTAINER / "memory.max").read_text().strip()
        return math.inf if most == "max" else float(most) - _unreclaimable(CONTAINER)
    except (OSError, ValueError):
        return math.inf


def _unreclaimable(group: Path) -> float:
    """The group's memory less the files that it caches, which give way."""
    held = float((group / "memory.current").read_text())
    fields = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    return held - float(fields.get("inactive_file", 0))


def peak_above_inputs(
    make: Make, arguments: tuple[object, ...], *, tiny: tuple[object, ...], threads: int = 2
) -> float:
    """Returns the bytes by which one call raises the resident memory of a fresh process.

    The child warms libraries and thread pools with a tiny call, allocates and fills the inputs,
    gives freed pages back to the system, notes its resident size and then makes the one call.
    What the call returns counts: it is alive at the peak.

    Args:
        make: a module-level function; `make(*arguments)` allocates and fills the inputs and
            returns the call without arguments.
        arguments: picklable arguments of `make` for the measured call.
        tiny: the same for the warming call.
        threads: threads that torch may use in the child.

    Raises:
        NotMeasured: where /proc does not tell the resident memory, or when the child died.
    """
    if not STATUS.exists():
        raise NotMeasured("resident memory is read from /proc, which this system lacks")
    # Spawned, not forked: a child forked after OpenMP ran would hang in its first parallel region.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(sender, make, arguments, tiny, threads))
    child.start()
    sender.close()
    try:
        peak: float = receiver.recv()
    except EOFError:
        child.join()
        raise NotMeasured(f"its process died with exit code {child.exitcode}") from None
    child.join()
    return peak


def _measure(
    sender: Connection,
    make: Make,
    arguments: tuple[object, ...],
    tiny: tuple[object, ...],
    threads: int,
) -> None:
    torch.set_num_threads(threads)
    make(*tiny)()
    call = make(*arguments)
    _release_free_pages()
    baseline = _resident("VmRSS")
    result, peak = _run_watched(call)
    sender.send(float(peak - baseline))
    sender.close()
    del result


def _run_watched(call: Callable[[], object]) -> tuple[object, int]:
    """Runs the call and returns its result with the largest resident size in bytes meanwhile."""
    try:
        CLEAR_REFS.write_text(RESET_HIGH_WATER_MARK)
    except OSError:
        return _run_sampled(call)
    result = call()
    return result, _resident("VmHWM")


def _run_sampled(call: Callable[[], object]) -> tuple[object, int]:
    """The same by a thread that looks again and again, where the mark may not be reset."""
    finished = threading.Event()
    largest = [_resident("VmRSS")]

    def watch() -> None:
        while not finished.wait(SAMPLING_SECONDS):
            largest.append(max(largest.pop(), _resident("VmRSS")))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = call()
    finally:
        finished.set()
        watcher.join()
    return result, max(largest[0], _resident("VmRSS"))


def _resident(field: str) -> int:
    """A size of this process in bytes."""
    return _field(STATUS, field)


def _field(path: Path, field: str) -> int:
    """A size that the kernel tells, in bytes."""
    for line in path.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise NotMeasured(f"{path} has no {field}")


def _release_free_pages() -> None:
    """Gives the heap's free pages back: reused, they would hide what the call takes."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
