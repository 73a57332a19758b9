"""Decoding on a GPU: a whole step of a model, recorded once as a CUDA graph and run again.

A graph repeats the recorded launches with the recorded addresses. So a step never reads a number
from the device, and works in a slot: inputs, states and random numbers for a number of rows, in
tensors at fixed addresses. A batch takes the first rows of a slot that is less than twice as large;
the others are spare. `generate` reserves a slot and steps in it. Any other state is copied into a
free slot, stepped, and copied back.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from types import FunctionType
from typing import Protocol, TypeVar, cast

import torch
from torch import Tensor

from linattn_core import registry
from linattn_core.decoder_spec import (
    CannotCompile,
    DecoderDescription,
    DecoderState,
    Draw,
    NativeDecoder,
)
from linattn_core.errors import expected
from linattn_models.decoding.torch_step import TorchStep
from linattn_models.heads.base import at_least_single
from linattn_models.heads.filters import keep_likely

# How many slots without an owner are kept for later steps, each with the memory of its states.
_FREE_SLOTS = 4
# Up to so many rows, new slots have a power of two of them: a step of more takes longer with each.
_FEW_ROWS = 64
# How often the work runs before it is recorded, so that libraries load kernels and allocate memory.
_WARM_UPS = 2

# Settings of torch's compiler: a product of one row is a sum that what follows joins, tuned on the
# GPU; and sums that do not depend on each other are one kernel.
_FUSION: dict[str, str | int | bool | Callable[..., object]] = {
    "coordinate_descent_tuning": True,
    "combo_kernels": True,
}

Result = TypeVar("Result")
States = Sequence[DecoderState]
# The parameters (B, P), or vectors (B, E), and the tokens that were drawn.
Stepped = tuple[Tensor, Tensor | None]
# The method `invert` of a head.
Invert = Callable[[Tensor, Tensor, Tensor], Tensor]

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


def fuse(work: Callable[[], Result]) -> Callable[[], Result]:
    """The same work in fewer kernels, which torch's compiler makes at the first call."""

    def run() -> Result:
        return work()

    # A code object of its own: torch compiles each for a few sizes only.
    own = FunctionType(run.__code__.replace(), run.__globals__, closure=run.__closure__)
    fused: Callable[[], Result] = torch.compile(own, fullgraph=True, dynamic=False, options=_FUSION)
    return fused


class CudaGraphRecorder:
    """Records CUDA graphs; each run is one launch on the current stream.

    Args:
        device: where the tensors of the work are.
        fuses: whether torch's compiler fuses the kernels first.
    """

    def __init__(self, device: torch.device, fuses: bool = False) -> None:
        if device.type != "cuda":
            advice = "move the model by .cuda(), or compile_decoder packs it for the CPU"
            raise CannotCompile(expected("a CUDA graph", "weights on a CUDA GPU", device, advice))
        if not torch.cuda.is_available():
            got = f"torch {torch.__version__}, which finds no CUDA GPU"
            advice = "install torch for CUDA and a driver, or decode on the CPU"
            raise CannotCompile(expected("a CUDA graph", f"a GPU for {device}", got, advice))
        if fuses and find_spec("triton") is None:
            advice = "install a torch for CUDA, which brings it, or leave out fuse=True"
            raise CannotCompile(expected("fuse=True", "Triton", "no module triton", advice))
        self.device = device
        self._stream: torch.cuda.Stream | None = None
        self._last: torch.cuda.Stream | None = None
        self._fuses = fuses
        kernels = " of fused kernels" if fuses else ""
        self.name = f"CUDA graphs{kernels} on {torch.cuda.get_device_name(device)}"

    def record(self, work: Callable[[], Result]) -> Callable[[], Result]:
        work = fuse(work) if self._fuses else work
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


class GraphDecoder(NativeDecoder):
    """A decoder that records steps; see `linattn_core.decoder_spec.NativeDecoder` for the methods.

    Args:
        description: the model; its weights are copied.
        weights, backend: as for `TorchStep`.
        invert: the head's method `invert`, or None where tokens are not drawn inside the step.
        recorder: records and repeats the steps.
    """

    def __init__(
        self,
        description: DecoderDescription,
        weights: str,
        backend: str,
        invert: Invert | None,
        recorder: Recorder,
    ) -> None:
        if backend != "auto":
            registry.find_backend(backend)
        self._torch_step = TorchStep(description, weights, backend)
        self._invert = invert
        self._recorder = recorder
        self._slots: list[_Slot] = []  # the most recently used at the end
        self._lock = threading.RLock()

    @property
    def nbytes(self) -> int:
        """Bytes of the copied weights."""
        return self._torch_step.nbytes

    @property
    def instruction_set(self) -> str:
        """The name of the recorder, such as "CUDA graphs on ..."."""
        return self._recorder.name

    @property
    def has_filters(self) -> bool:
        return True

    def check(self, states: States) -> None:
        device = self._torch_step.device
        for x in (x for state in states for x in state):
            if x.dtype != torch.float32 or x.device != device:
                got = f"{x.dtype} on {x.device}"
                advice = f"convert it by .to({str(device)!r}, torch.float32)"
                raise ValueError(expected("a state", f"float32 on {device}", got, advice))

    def prefill(self, inputs: Tensor, lengths: Tensor | None, states: States) -> Tensor:
        return self._prefill(inputs, lengths, states, None)

    def read(
        self, tokens: Tensor, lengths: Tensor | None, position: int | Tensor, states: States
    ) -> Tensor:
        return self._prefill(tokens, lengths, states, position)

    def _prefill(
        self, inputs: Tensor, lengths: Tensor | None, states: States, position: int | Tensor | None
    ) -> Tensor:
        with torch.no_grad():
            outputs, final_states = self._torch_step.prefill(inputs, lengths, states, position)
            _copy(final_states, states)
        return outputs

    def step(
        self,
        inputs: Tensor,
        position: int | Tensor,
        states: States,
        draw: Draw | None,
    ) -> Stepped:
        with self._lock, torch.no_grad():
            slot = reserved = self._slot_of(states)
            if slot is None:
                slot = self._free_slot(inputs.shape[0])
                slot.take_rows(inputs.shape[0])
            parameters, tokens = slot.step(states, inputs, position, draw)
            if reserved is None:
                parameters = parameters.clone()  # the slot's next step may be another caller's
            return parameters, None if tokens is None else tokens.clone()

    def reserve(self, batch: int, owner: object) -> tuple[DecoderState, ...]:
        """The states of a slot, which is free again when the owner is garbage collected.

        An owner has one slot: states that it got before are no longer reserved.
        """
        with self._lock:
            for slot in self._slots:
                if slot.owner is not None and slot.owner() is owner:
                    slot.owner = None
            slot = self._free_slot(batch)
            slot.owner = weakref.ref(owner)
            slot.take_rows(batch)
            self._recorder.wait()
            return slot.states

    def _slot_of(self, states: States) -> _Slot | None:
        return next((slot for slot in self._slots if slot.states is states), None)

    def _free_slot(self, batch: int) -> _Slot:
        free = [slot for slot in self._slots if not slot.reserved]
        fitting = [slot for slot in free if slot.size == batch or batch <= slot.size < 2 * batch]
        if fitting:
            slot = min(fitting, key=lambda slot: slot.size)
            self._slots.remove(slot)
            self._slots.append(slot)
            return slot
        for slot in free[: max(0, len(free) + 1 - _FREE_SLOTS)]:
            self._recorder.release(slot.tensors)
            self._slots.remove(slot)
        # With batch size 0 there is no kernel to record.
        recorder = self._recorder if batch else EagerRecorder()
        size = 1 << (batch - 1).bit_length() if 0 < batch <= _FEW_ROWS else batch
        self._slots.append(_Slot(self._torch_step, self._invert, recorder, size))
        return self._slots[-1]


class _Slot:
    """The tensors that steps of so many rows read and write, and the recorded steps.

    Attributes:
        size: the number of rows.
        states: the state of each layer, of the rows in use: the first ones.
        owner: the object for which the slot is reserved.
    """

    def __init__(
        self, torch_step: TorchStep, invert: Invert | None, recorder: Recorder, size: int
    ) -> None:
        self.size = size
        self.owner: weakref.ref[object] | None = None
        self._torch_step = torch_step
        self._invert = invert
        self._recorder = recorder
        self._recorded: dict[str, Callable[[], Stepped]] = {}
        self._limits_of: Tensor | None = None  # `top_k` of the last draw
        # Normal tensors, not inference tensors, so that steps may write them in either mode.
        with torch.inference_mode(False):
            self._states = torch_step.zeros(size)
            self._make_inputs(torch_step.device)
        self.take_rows(size)

    @property
    def reserved(self) -> bool:
        """Whether the owner is alive."""
        return self.owner is not None and self.owner() is not None

    @property
    def tensors(self) -> list[Tensor]:
        """All tensors that a run may still read or write: states and inputs."""
        states = [x for state in self._states for x in state]
        inputs = (*vars(self).values(), *self._draw)
        return states + [x for x in inputs if isinstance(x, Tensor)]

    def take_rows(self, batch: int) -> None:
        """Makes `states` those of the first rows; later steps are of these."""
        self._batch, self._limits_of = batch, None
        with torch.inference_mode(False):
            self.states = tuple(_first_rows(state, batch) for state in self._states)

    def step(
        self, states: States, inputs: Tensor, position: int | Tensor, draw: Draw | None
    ) -> Stepped:
        """One step of the slot's own states or of other ones, which are updated in place."""
        self._recorder.wait()
        if states is not self.states:
            _copy(states, self.states)
        run = self._recording(draw)
        self._put(inputs, position, draw)
        parameters, tokens = run()
        if states is not self.states:
            with torch.inference_mode():  # outside, torch does not write what was made inside
                _copy(self.states, states)
        return parameters[: self._batch], self._first(tokens)

    def _first(self, x: Tensor | None) -> Tensor | None:
        return None if x is None else x[: self._batch]

    def _make_inputs(self, device: torch.device) -> None:
        tokens = self._torch_step.model.tokens
        if tokens is None:
            embed = self._torch_step.model.norm.weight.shape[0]
            self._inputs = torch.zeros(self.size, embed, dtype=torch.float32, device=device)
        else:
            extra = () if len(tokens.embeddings) == 1 else (len(tokens.embeddings),)
            self._inputs = torch.zeros(self.size, *extra, dtype=torch.int64, device=device)
        self._position = torch.zeros(self.size, dtype=torch.int64, device=device)
        numbers = partial(torch.zeros, dtype=torch.float64, device=device)
        top_k = torch.zeros_like(self._position)
        limits = top_k, numbers(self.size), numbers(self.size)
        self._draw = Draw(numbers(self.size) + 1, numbers((self.size, 4)), *limits)

    def _put(self, inputs: Tensor, position: int | Tensor, draw: Draw | None) -> None:
        self._inputs[: self._batch].copy_(inputs)
        if isinstance(position, int):
            self._position.fill_(position)
        else:
            self._position[: self._batch].copy_(position)
        if draw is None:
            return
        self._draw.uniform[: self._batch].copy_(draw.uniform)
        if draw.top_k is not self._limits_of:
            for name in ("temperature", "top_k", "top_p", "min_p"):
                getattr(self._draw, name)[: self._batch].copy_(getattr(draw, name))
            self._limits_of = draw.top_k

    def _recording(self, draw: Draw | None) -> Callable[[], Stepped]:
        """The recorded step, without a draw or with one, of all tokens or of those that pass."""
        kind = "parameters"
        if draw is not None:
            kind = "filtered" if draw.is_filtered else "drawn"
        if kind not in self._recorded:
            # Recording runs steps, which change the states.
            before = [state.clone() for state in self._states]
            try:
                self._recorded[kind] = self._recorder.record(partial(self._work, kind))
            finally:
                _copy(before, self._states)
        return self._recorded[kind]

    def _work(self, kind: str) -> Stepped:
        parameters = self._torch_step.step(self._inputs, self._position, self._states)
        if kind == "parameters" or self._invert is None:
            return parameters, None
        temperature, uniform, *limits = self._draw[:5]
        passing = at_least_single(parameters)
        if kind == "filtered":
            passing = keep_likely(passing, temperature, *limits, sorts=True)
        return parameters, self._invert(passing, uniform, temperature)


def _first_rows(state: DecoderState, batch: int) -> DecoderState:
    """Views of the first rows, as a state of the same kind."""
    kind = cast(Callable[..., DecoderState], type(state))
    return kind(*(x[:batch] for x in state))


def _copy(source: States, target: States) -> None:
    for own, other in zip(target, source, strict=True):
        for x, y in zip(own, other, strict=True):
            x.copy_(y)
