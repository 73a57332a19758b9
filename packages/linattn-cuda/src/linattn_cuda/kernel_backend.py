"""From torch to the kernels: refusals in sentences, tensors turned into addresses and back.

What differs between a GPU and the emulation of one, on which the tests run, is left to subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.native import (
    Gradients,
    Output,
    addresses,
    check_own_memory,
    contiguous,
    strided,
    written_in_place,
)
from linattn_core.registry import AttentionCall, StepCall
from linattn_core.state import LinearAttentionState
from linattn_cuda import _native
from linattn_cuda.device import OLDEST_CAPABILITY, Gpu

# The numbers by which linattn/calls.h knows dtypes, feature maps and precisions.
_DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_MAPS = {"identity": 0, "relu": 1, "elu": 2}
_HIGHEST, _HIGH = 0, 1


class Schedule(NamedTuple):
    """How blocks of threads share a sequence of one head.

    Attributes:
        segments: pieces that it is cut into, a block each; 1 has one block walk it.
        relay: causal segments hand their states from block to block within one launch; otherwise
            what comes before each is summed up in launches of its own.
    """

    segments: int
    relay: bool = False


class KernelBackend(ABC):
    """Runs calls by the kernels of one build; see `linattn_core.registry.Backend` for the promises.

    All memory is torch's, and nothing waits: a call can be captured in a CUDA graph.

    Attributes:
        native: the compiled module.
        schedule: how blocks of threads share the sequences; None leaves that to the shape of each
            call.
    """

    name: str
    speed: int
    double_backward = True
    native: Any = _native
    schedule: Schedule | None = None

    @abstractmethod
    def refuses_device(self, device: torch.device) -> str | None:
        """None if kernels run on such tensors, or the reason as a sentence."""

    @abstractmethod
    def gpu(self, device: torch.device) -> Gpu:
        """What the device offers, once it was not refused."""

    @abstractmethod
    def launching(self, device: torch.device) -> AbstractContextManager[int]:
        """Makes the device the current one, and gives the stream that kernels go to."""

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Other memory than a GPU's, float64, old GPUs, and heads too wide for a block."""
        reason = self.refuses_device(call.device)
        if reason is not None:
            return reason
        for dtype in (call.query_dtype, call.value_dtype):
            if dtype not in _DTYPES:
                return (
                    f"it has no kernels for {str(dtype).removeprefix('torch.')}, as its sums are "
                    'kept in float32; convert the tensors or pass backend="reference".'
                )
        gpu = self.gpu(call.device)
        if gpu.capability < OLDEST_CAPABILITY:
            return "its kernels need compute capability {}.{} and {} has {}.{}.".format(
                *OLDEST_CAPABILITY, gpu.name, *gpu.capability
            )
        return self._refuses_width(call, gpu)

    def _refuses_width(self, call: AttentionCall | StepCall, gpu: Gpu) -> str | None:
        width = f"features of {call.feature_dim} and values of {call.value_dim}"
        if isinstance(call, StepCall):
            needed = self.native.step_shared_bytes(call.feature_dim)
        else:
            needed = self.native.shared_bytes(
                call.feature_dim, call.value_dim,
                _DTYPES[call.query_dtype], _DTYPES[call.value_dtype], float32_precision(),
            )  # fmt: skip
        if needed < 0:
            return f'it has no kernel for {width}; pass backend="reference".'
        if needed > gpu.shared_bytes:
            return (
                f"its kernels for {width} in {str(call.query_dtype).removeprefix('torch.')} need "
                f"{needed:,} bytes of shared memory a block and {gpu.name} offers "
                f'{gpu.shared_bytes:,}; pass backend="reference".'
            )
        return None

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_lengths: Tensor | None,
        cu_seqlens: Tensor | None,
        initial_state: LinearAttentionState | None,
        is_causal: bool,
        keep_state: bool,
        feature_map: str,
        eps: float,
    ) -> Output:
        # Named, because the kernel is handed addresses and these may be copies.
        lengths = _on_device(key_lengths, value), _on_device(cu_seqlens, value)
        initial = contiguous(initial_state)
        call = self._call(query, key, value, lengths, feature_map, eps, is_causal)
        out = value.new_empty(*query.shape[:3], value.shape[3])
        normalizer = value.new_empty(query.shape[:3], dtype=torch.float32)
        last = None
        if keep_state or not is_causal:
            last = _new_state(key, value, cu_seqlens)
        workspace = _workspace(self.native.forward_workspace(call), value)
        with self.launching(value.device) as stream:
            self.native.attention_forward(
                call, addresses(initial), addresses(last), out.data_ptr(), normalizer.data_ptr(),
                _address(workspace), stream,
            )  # fmt: skip
        return Output(out, last, normalizer)

    def attention_backward(
        self,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        normalizer: Tensor,
        *,
        key_lengths: Tensor | None,
        cu_seqlens: Tensor | None,
        state: LinearAttentionState | None,
        is_causal: bool,
        feature_map: str,
        eps: float,
    ) -> Gradients:
        # Named, because the kernel is handed addresses and these may be copies.
        lengths = _on_device(key_lengths, value), _on_device(cu_seqlens, value)
        given, above = contiguous(state), contiguous(grad_state)
        out, normalizer = out.contiguous(), normalizer.contiguous()
        call = self._call(query, key, value, lengths, feature_map, eps, is_causal)
        grad_query, grad_key, grad_value = (
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        grad_initial = None
        if is_causal and given is not None:
            grad_initial = LinearAttentionState(*(torch.empty_like(x) for x in given))
        workspace = _workspace(self.native.backward_workspace(call), value)
        with self.launching(value.device) as stream:
            self.native.attention_backward(
                call, strided(grad_out), addresses(above), addresses(given),
                (out.data_ptr(), normalizer.data_ptr()),
                (grad_query.data_ptr(), grad_key.data_ptr(), grad_value.data_ptr()),
                addresses(grad_initial), _address(workspace), stream,
            )  # fmt: skip
        return Gradients(grad_query, grad_key, grad_value, grad_initial)

    def step_(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: LinearAttentionState,
        *,
        feature_map: str,
        eps: float,
    ) -> Tensor:
        check_own_memory("the state's s", state.s)
        check_own_memory("the state's z", state.z)
        out = value.new_empty(value.shape)
        batch, heads, dim = query.shape
        with self.launching(value.device) as stream:
            self.native.step(
                strided(query[:, :, None]), strided(key[:, :, None]), strided(value[:, :, None]),
                strided(state.s), strided(state.z[:, :, None]), out.data_ptr(),
                (batch, heads, dim, value.shape[2]),
                (_DTYPES[query.dtype], _DTYPES[value.dtype], _MAPS[feature_map]), eps, stream,
            )  # fmt: skip
        written_in_place(state.s, state.z)
        return out

    def _call(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        lengths: tuple[Tensor | None, Tensor | None],
        feature_map: str,
        eps: float,
        is_causal: bool,
    ) -> Any:
        batch, heads, queries, dim = query.shape
        keys, value_dim, cu_seqlens = key.shape[2], value.shape[3], lengths[1]
        sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
        schedule = self.schedule
        if schedule is None:
            length = max(queries, keys) * batch // max(1, sequences)
            schedule = self.native.best_schedule(
                sequences * heads, length, dim, value_dim, is_causal,
                self.gpu(value.device).multiprocessors,
            )  # fmt: skip
        return self.native.Call(
            strided(query), strided(key), strided(value),
            (batch, heads, queries, keys, dim, value_dim, sequences),
            (_DTYPES[query.dtype], _DTYPES[value.dtype], _MAPS[feature_map], float32_precision()),
            (_address(lengths[0]), _address(lengths[1])), eps, is_causal, schedule,
        )  # fmt: skip


def float32_precision() -> int:
    """How products of float32 numbers are computed, as torch's own matrix products are told to.

    "highest" (torch's default) keeps float32's accuracy; "high" and "medium" keep 16 bits of each
    number, by `torch.set_float32_matmul_precision`. It is read at every call.
    """
    return _HIGHEST if torch.get_float32_matmul_precision() == "highest" else _HIGH


def _on_device(lengths: Tensor | None, like: Tensor) -> Tensor | None:
    """The same numbers as the kernels read them: contiguous int64 beside the other tensors."""
    if lengths is None:
        return None
    if like.is_cuda and lengths.is_cpu and torch.cuda.is_current_stream_capturing():
        raise ValueError(
            "Lengths were expected on the GPU while a CUDA graph is captured and are on the CPU, "
            f"from where a copy would wait; move them to {like.device} before."
        )
    return lengths.to(device=like.device, dtype=torch.int64).contiguous()


def _new_state(key: Tensor, value: Tensor, cu_seqlens: Tensor | None) -> LinearAttentionState:
    batch, heads, _, dim = key.shape
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    return LinearAttentionState(
        value.new_empty(sequences, heads, dim, value.shape[3], dtype=torch.float32),
        value.new_empty(sequences, heads, dim, dtype=torch.float32),
    )


def _workspace(nbytes: int, like: Tensor) -> Tensor | None:
    return like.new_empty(nbytes, dtype=torch.uint8) if nbytes else None


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
