"""Work that is recorded once and run again: as a CUDA graph, or by calling it again.

What is recorded reads its inputs from tensors that stay where they are and never asks the device
for a number: a graph repeats the very addresses and the very launches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from linattn_core.decoding import CannotCompile

Result = TypeVar("Result")

# Runs before the recording, in which libraries load their kernels and set memory aside.
_REHEARSALS = 2


class Recorder(Protocol):
    """Makes work that is run many times cheap to run.

    Attributes:
        name: what `repr` says of a decoder's steps.
    """

    name: str

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """What runs `work` again, and returns what it did: tensors that the next run may reuse.

        Recording may run the work, any number of times.
        """

    def follow(self) -> None:
        """Has what comes now run behind all that was recorded here and has run before."""

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Tells that the tensors go out of use, though what ran last may still write them."""


class EagerRecorder:
    """Records nothing and calls the work itself, on any device: to test it and to debug it."""

    name = "unrecorded"

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        return work

    def follow(self) -> None:
        """Nothing runs beside anything else."""

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Nothing is still running."""


_one_recording = threading.Lock()


class CudaGraphRecorder:
    """Records CUDA graphs; each run is one launch, on the stream that is current.

    Args:
        device: where the tensors of the work are.

    Raises:
        CannotCompile: no CUDA GPU, or another device.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise CannotCompile(
                f"a CUDA graph was asked for and the weights are on {device}; move the model by "
                ".cuda(), or compile_decoder packs it for the CPU."
            )
        if not torch.cuda.is_available():
            raise CannotCompile(
                f"a CUDA graph was asked for on {device} and torch {torch.__version__} finds no "
                "CUDA GPU; install a build of torch for CUDA and a driver, or decode on the CPU."
            )
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None
        self.name = f"CUDA graphs on {torch.cuda.get_device_name(device)}"

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        # One recording at a time in the whole process: to begin one, torch waits for the device,
        # which is forbidden while any of its streams is being recorded.
        with _one_recording, torch.cuda.device(self.device):
            # Always the same, as libraries keep scratch memory for each stream that they have seen.
            stream = self._stream = self._stream or torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_REHEARSALS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads may go on allocating meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = work()

        def run() -> Result:
            graph.replay()
            return result

        return run

    def follow(self) -> None:
        """Waits, on the device alone, for the stream of the step before if this is another.

        That is the last step of any graph recorded here: they share libraries' scratch memory.
        """
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)
        self._last = stream

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Has their memory wait for the last step before it is given to others."""
        if self._last is not None:
            for tensor in tensors:
                tensor.record_stream(self._last)
