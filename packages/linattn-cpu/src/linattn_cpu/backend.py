"""What linattn_core sees: refusals in sentences, tensors turned into addresses and back."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.decoding import DecoderDescription, NativeDecoder
from linattn_core.registry import AttentionCall, StepCall
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_cpu import _native, decoder
from linattn_cpu.tensors import check_own_memory, written_in_place

# The numbers by which native/calls.hpp knows dtypes and feature maps.
_DTYPES = {torch.float64: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
_MAPS = {"identity": 0, "relu": 1, "elu": 2}
_NO_STATE = (0, 0)


class Output(NamedTuple):
    """What the forward pass leaves; see `linattn_core.registry.Backend.attention`."""

    out: Tensor
    state: LinearAttentionState | None
    normaliser: Tensor


class Gradients(NamedTuple):
    """What the backward pass leaves: gradients of q, k, v and of the starting state."""

    query: Tensor
    key: Tensor
    value: Tensor
    state: LinearAttentionState | None


class CpuBackend:
    """Runs every call on CPU tensors; see `linattn_core.registry.Backend` for the promises.

    Feature map, sums and normaliser are one pass over the sequence; the backward pass computes
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
        normaliser = value.new_empty(query.shape[:3], dtype=dtype)
        initial = _contiguous(initial_state)
        last = None
        if keep_state or not is_causal:
            last = LinearAttentionState.zeros(
                sequences, query.shape[1], key.shape[3], value.shape[3], dtype=dtype
            )
        _native.attention_forward(
            call, _numbers(key_lengths), _numbers(cu_seqlens), _addresses(initial),
            _addresses(last), out.data_ptr(), normaliser.data_ptr(),
        )  # fmt: skip
        return Output(out, last, normaliser)

    def attention_backward(
        self,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        normaliser: Tensor,
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
        given, above = _contiguous(state), _contiguous(grad_state)
        out, normaliser = out.contiguous(), normaliser.contiguous()
        grad_query, grad_key, grad_value = (
            torch.empty_like(x, memory_format=torch.contiguous_format) for x in (query, key, value)
        )
        grad_initial = None
        if is_causal and given is not None:
            grad_initial = LinearAttentionState(*(torch.empty_like(x) for x in given))
        scratch = torch.empty_like(normaliser)
        _native.attention_backward(
            call, _numbers(key_lengths), _numbers(cu_seqlens), _strided(grad_out),
            _addresses(above), _addresses(given),
            (out.data_ptr(), normaliser.data_ptr(), scratch.data_ptr()),
            (grad_query.data_ptr(), grad_key.data_ptr(), grad_value.data_ptr()),
            _addresses(grad_initial),
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
            _strided(query[:, :, None]), _strided(key[:, :, None]), _strided(value[:, :, None]),
            _strided(state.s), _strided(state.z[:, :, None]), out.data_ptr(),
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
        _strided(query), _strided(key), _strided(value), sizes, _kinds(query, value, feature_map),
        eps, is_causal, torch.get_num_threads(),
    )  # fmt: skip


def _kinds(query: Tensor, value: Tensor, feature_map: str) -> tuple[int, int, int]:
    return _DTYPES[query.dtype], _DTYPES[value.dtype], _MAPS[feature_map]


def _strided(x: Tensor) -> tuple[int, int, int, int, int]:
    """Where a (B, H, N, D) tensor lies and how: address, strides in elements."""
    batch, head, position, dim = x.stride()
    return x.data_ptr(), batch, head, position, dim


def _contiguous(state: LinearAttentionState | None) -> LinearAttentionState | None:
    return None if state is None else LinearAttentionState(*(x.contiguous() for x in state))


def _addresses(state: LinearAttentionState | None) -> tuple[int, int]:
    return _NO_STATE if state is None else (state.s.data_ptr(), state.z.data_ptr())


def _numbers(x: Tensor | None) -> list[int]:
    return [] if x is None else x.tolist()
