"""What times calls and counts their memory: a GPU, or the CPU to show that everything runs."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Protocol

import torch

from benchmarks import machine
from benchmarks.machine import Limits
from benchmarks.registry import NotMeasured

Run = Callable[[], object]

SAMPLE_SECONDS, MOST_CALLS = 0.01, 20
# Written before each call that is timed. It leaves nothing of the inputs in the L2 cache, and takes
# the GPU a good while, in which the interpreter gets ahead: launches are not part of the time.
LEAD_BYTES = 2**30
LARGEST_SHARE = 16  # of the GPU's memory, that no tensor of ours here shall exceed
GEMM_SIZE, LIMIT_ROUNDS = 8_192, 15


class Instrument(Protocol):
    """Takes measurements of calls on one device."""

    device: str

    def seconds(self, run: Run) -> float:
        """Returns the time of one call, the median of several where it is short."""

    def peak(self, run: Run) -> float:
        """Returns the bytes that torch holds at most during one call, above those before it."""

    def limits(self) -> Limits:
        """Returns the device's own rates."""

    def alive(self) -> bool:
        """False when an earlier failure has left the device's context unusable."""


class CudaInstrument:
    """Times by CUDA events on the current stream, each call with a cold L2 cache."""

    device = "cuda"

    def __init__(self) -> None:
        memory = torch.cuda.get_device_properties(0).total_memory
        self._largest = memory // LARGEST_SHARE
        self._lead = torch.empty(
            min(LEAD_BYTES, self._largest), dtype=torch.int8, device=self.device
        )

    def seconds(self, run: Run) -> float:
        """See `Instrument`."""
        taken: list[float] = []
        while len(taken) < MOST_CALLS and sum(taken) < SAMPLE_SECONDS:
            taken.append(self._once(run))
        return statistics.median(taken)

    def peak(self, run: Run) -> float:
        """See `Instrument`; what is allocated without torch's allocator is not seen."""
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = run()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        del kept
        return float(peak)

    def limits(self) -> Limits:
        """See `Instrument`; of random numbers, with which a GPU draws the power that it does."""
        size = GEMM_SIZE
        numbers = torch.randn(2, size, size, device=self.device)
        halves = numbers.bfloat16()
        source = torch.empty(min(2**32, self._largest), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = False
        try:
            gemm_float32 = 2 * size**3 / self._best(lambda: numbers[0] @ numbers[1])
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before
        return Limits(
            gemm_float32=gemm_float32,
            gemm_bfloat16=2 * size**3 / self._best(lambda: halves[0] @ halves[1]),
            copy_bandwidth=2 * source.nbytes / self._best(lambda: target.copy_(source)),
        )

    def alive(self) -> bool:
        """See `Instrument`."""
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True

    def _best(self, run: Run) -> float:
        """The least of several, not the median: a limit is reached when nothing disturbs it."""
        for _ in range(3):
            run()
        return min(self._once(run) for _ in range(LIMIT_ROUNDS))

    def _once(self, run: Run) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self._lead.zero_()
        begin.record()
        run()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class CpuInstrument:
    """Stands in where there is no GPU; its numbers mean nothing."""

    device = "cpu"

    def seconds(self, run: Run) -> float:
        """See `Instrument`."""
        started = time.perf_counter()
        run()
        return time.perf_counter() - started

    def peak(self, run: Run) -> float:
        """See `Instrument`."""
        raise NotMeasured("torch counts the memory of a GPU, not of the CPU")

    def limits(self) -> Limits:
        """See `Instrument`."""
        return machine.measure_limits(quick=True)

    def alive(self) -> bool:
        """See `Instrument`."""
        return True


@functools.cache
def instrument(device: str) -> Instrument:
    """Returns what measures on that device, the same one at every call."""
    return CudaInstrument() if device == "cuda" else CpuInstrument()
