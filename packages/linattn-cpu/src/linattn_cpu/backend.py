"""What linattn_core sees: refusals in sentences, tensors turned into addresses and back."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.decoding import DecoderDescription, NativeDecoder
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
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_cpu import _native, decoder

# The numbers by which native/calls.hpp knows dtypes and feature maps.
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_MAPS = {"identity": 0, "relu": 1, "elu": 2}


class CpuBackend:
    """Runs every call on CPU tensors; see `linattn_core.registry.Backend` for the promises.

    Feature map, sums and normalizer are one pass over the sequence; the backward pass computes
    again what it needs, and keeps one number a position.
    """

    name = "cpu"
    speed = 10
    double_backward = True

    @property
    def description(self) -> str:
        """Which build of the kernels this machine runs, of those that the wheel holds."""
        built = ", ".join(_native.instruction_sets())
        return (
            f"C++ kernels for {_native.instruction_set()} (usable here: {built}), threads by "
            f"{_native.threading}"
        )

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Anything but CPU memory."""
        if call.device.type != "cpu":
            return f"it runs on CPU tensors and these are on {call.device}; move them to the CPU."
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
        sequences = query.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        call = _call(query, key, value, sequences, feature_map, eps, is_causal)
        dtype = accumulation_dtype(value.dtype)
        out = value.new_empty(*query.shape[:3], value.shape[3])
        normalizer = value.new_empty(query.shape[:3], dtype=dtype)
        initial = contiguous(initial_state)
        last = None
        if keep_state or not is_causal:
            last = LinearAttentionState.zeros(
                sequences, query.shape[1], key.shape[3], value.shape[3], dtype=dtype, device="cpu"
            )
        _native.attention_forward(
            call, _numbers(key_lengths), _numbers(cu_seqlens), addresses(initial),
            addresses(last), out.data_ptr(), normalizer.data_ptr(),
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
        sequences = query.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
        call = _call(query, key, value, sequences, feature_map, eps, is_causal)
        # Named, because the kernel is handed addresses and these may be copies.
        given, above = contiguous(state), contiguous(grad_state)
        out, normalizer = out.contiguous(), normalizer.contiguous()
        grad_query, grad_key, grad_value = (
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        grad_initial = None
        if is_causal and given is not None:
            grad_initial = LinearAttentionState(*(torch.empty_like(x) for x in given))
        scratch = torch.empty_like(normalizer)
        _native.attention_backward(
            call, _numbers(key_lengths), _numbers(cu_seqlens), strided(grad_out),
            addresses(above), addresses(given),
            (out.data_ptr(), normalizer.data_ptr(), scratch.data_ptr()),
            (grad_query.data_ptr(), grad_key.data_ptr(), grad_value.data_ptr()),
            addresses(grad_initial),
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
        _native.step(
            strided(query[:, :, None]), strided(key[:, :, None]), strided(value[:, :, None]),
            strided(state.s), strided(state.z[:, :, None]), out.data_ptr(),
            (batch, heads, dim, value.shape[2]), _kinds(query, value, feature_map), eps,
            torch.get_num_threads(),
        )  # fmt: skip
        written_in_place(state.s, state.z)
        return out

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        """See `linattn_core.registry.DecoderBackend`."""
        return decoder.refuses_decoder(description, weights)

    def compile_decoder(self, description: DecoderDescription, weights: str) -> NativeDecoder:
        """See `linattn_core.registry.DecoderBackend`."""
        return decoder.CpuDecoder(description, weights)


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    sequences: int,
    feature_map: str,
    eps: float,
    is_causal: bool,
) -> _native.Call:
    batch, heads, queries, dim = query.shape
    sizes = (batch, heads, queries, key.shape[2], dim, value.shape[3], sequences)
    return _native.Call(
        strided(query), strided(key), strided(value), sizes, _kinds(query, value, feature_map),
        eps, is_causal, torch.get_num_threads(),
    )  # fmt: skip


def _kinds(query: Tensor, value: Tensor, feature_map: str) -> tuple[int, int, int]:
    return _DTYPES[query.dtype], _DTYPES[value.dtype], _MAPS[feature_map]


def _numbers(x: Tensor | None) -> list[int]:
    return [] if x is None else x.tolist()
