"""Recorders make a step cheap to repeat: as a CUDA graph, or, for tests, by calling it again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from linattn_core.decoder_spec import CannotCompile
from linattn_core.errors import expected

# How often the work runs before it is recorded, so that libraries load kernels and allocate memory.
_WARM_UPS = 2

Result = TypeVar("Result")

_one_recording = threading.Lock()


class Recorder(Protocol):
    """Makes work that runs many times cheap to run.

    Attributes:
        name: shown in a decoder's `repr`.
    """

    name: str

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        """A function that runs `work` again and returns its results.

        The next run may overwrite the results. Recording may run the work any number of times.
        """

    def wait(self) -> None:
        """Makes later work on the current stream wait for the last run of any recording."""

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Makes sure that memory of the tensors is not reused before the last run has finished."""


class EagerRecorder:
    """Records nothing and calls the work each time, on any device; for tests and debugging."""

    name = "unrecorded"

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        return work

    def wait(self) -> None:
        """Does nothing: there is one stream."""

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Does nothing: no run is pending."""


class CudaGraphRecorder:
    """Records CUDA graphs; each run is one launch on the current stream.

    Args:
        device: where the tensors of the work are.
    """

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            advice = "move the model by .cuda(), or compile_decoder packs it for the CPU"
            raise CannotCompile(expected("a CUDA graph", "weights on a CUDA GPU", device, advice))
        if not torch.cuda.is_available():
            got = f"torch {torch.__version__}, which finds no CUDA GPU"
            advice = "install torch for CUDA and a driver, or decode on the CPU"
            raise CannotCompile(expected("a CUDA graph", f"a GPU for {device}", got, advice))
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None
        self.name = f"CUDA graphs on {torch.cuda.get_device_name(device)}"

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        # One recording at a time in the whole process: torch synchronizes the device before it
        # records, which CUDA forbids while any stream is being recorded.
        with _one_recording, torch.cuda.device(self.device):
            # One stream for all recordings: libraries keep scratch memory for each stream.
            stream = self._stream = self._stream or torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(_WARM_UPS):
                    work()
            torch.cuda.current_stream().wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # thread_local: other threads may allocate memory during the recording.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                result = work()

        def run() -> Result:
            graph.replay()
            return result

        return run

    def wait(self) -> None:
        """If the last run was on another stream, the current stream waits for it.

        This holds for the last run of any recording, because all share libraries' scratch memory.
        """
        stream = torch.cuda.current_stream(self.device)
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)
        self._last = stream

    def release(self, tensors: Sequence[Tensor]) -> None:
        """Keeps their memory from being reused before the last run has finished."""
        if self._last is not None:
            for tensor in tensors:
                tensor.record_stream(self._last)
