"""Peak resident memory of one call above its inputs, taken in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from benchmarks.registry import NotMeasured

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_HIGH_WATER_MARK = "5"  # see proc_pid_clear_refs(5)
SAMPLING_SECONDS = 0.0005

Make = Callable[..., Callable[[], object]]


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
    """A size from /proc/self/status in bytes."""
    for line in STATUS.read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise NotMeasured(f"/proc/self/status has no {field}")


def _release_free_pages() -> None:
    """Gives the heap's free pages back: reused, they would hide what the call takes."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
