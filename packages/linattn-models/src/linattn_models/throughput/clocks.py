"""Clocks for a CPU (its own clock) and for a GPU (CUDA events)."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Protocol

import torch


class Clock(Protocol):
    """Records readings, and gives the times between them afterwards."""

    def read(self) -> None:
        """Records the time at which all work submitted to the device so far is done."""

    def seconds(self) -> list[float]:
        """The times in seconds between each reading and the next."""


def clock(device: torch.device) -> Clock:
    """A clock for calls on this device."""
    return _CudaClock(device) if device.type == "cuda" else _CpuClock()


class _CpuClock:
    def __init__(self) -> None:
        self._readings: list[float] = []

    def read(self) -> None:
        self._readings.append(time.perf_counter())

    def seconds(self) -> list[float]:
        return [end - start for start, end in pairwise(self._readings)]


class _CudaClock:
    """CUDA events: the CPU does not wait for them, so it runs ahead as without measurement."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)
        self._readings: list[torch.cuda.Event] = []

    def read(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        self._readings.append(event)

    def seconds(self) -> list[float]:
        """Waits until the GPU has passed the last reading."""
        self._stream.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in pairwise(self._readings)]
