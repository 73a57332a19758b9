"""What linattn_core sees: refusals in sentences, tensors turned into addresses and back."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.decoding import DecoderDescription, NativeDecoder
from linattn_core.masked import erased
from linattn_core.native import (
    Fields,
    addresses,
    check_own_memory,
    contiguous,
    new_gradients,
    readable,
    strided,
    unsupported,
    written_in_place,
)
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_cpu import _native, decoder

_FIELDS = Fields(_native)
_NONE = torch.empty(0, device="cpu")  # its address is null


class CpuBackend:
    """Runs calls on CPU tensors, except those that `linattn_core.native.unsupported` names.

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

    def unusable(self) -> str | None:
        return None

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Anything but CPU memory, and what the kernels lack."""
        if call.query.is_cpu:
            return unsupported(call)
        return f"it runs on CPU tensors and these are on {call.device}; move them to the CPU."

    def attention(self, call: AttentionCall) -> Output:
        call = readable(call)
        (batch, heads, length, _), value = call.query.shape, call.value
        dtype, device = accumulation_dtype(value.dtype), value.device
        out = torch.empty(
            batch, heads, length, value.shape[3], dtype=value.dtype, device=device
        )  # separate sizes: torch reads them faster than a tuple
        normalizer = _NONE
        if call.requires_grad:
            normalizer = torch.empty(batch, heads, length, dtype=dtype, device=device)
        state = None
        if call.return_state or not call.is_causal:
            state = LinearAttentionState.zeros(
                call.num_sequences, call.heads, call.feature_dim, call.value_dim,
                dtype=dtype, device=device,
            )  # fmt: skip
        fields = _FIELDS.attention(call)
        fields["initial"] = addresses(call.initial_state)
        fields["last"] = addresses(state)
        fields["out"] = out.data_ptr()
        fields["normalizer"] = normalizer.data_ptr()
        fields["threads"] = torch.get_num_threads()
        _native.attention_forward(fields)
        return Output(out, normalizer, state)

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
    ) -> Gradients:
        # Named, because the kernel is handed addresses and these may be copies.
        mask, call, grad_state = call.attn_mask, readable(call), contiguous(grad_state)
        out, normalizer = output.out.contiguous(), output.normalizer.contiguous()
        state = call.initial_state if call.is_causal else contiguous(output.state)
        gradients, scratch = new_gradients(call), torch.empty_like(normalizer)
        fields = _FIELDS.attention(call)
        fields["grad_out"] = strided(grad_out)
        fields["grad_last"] = addresses(grad_state)
        fields["state"] = addresses(state)
        fields["out"] = out.data_ptr()
        fields["normalizer"] = normalizer.data_ptr()
        fields["scratch"] = scratch.data_ptr()
        fields["grad_query"] = gradients.query.data_ptr()
        fields["grad_key"] = gradients.key.data_ptr()
        fields["grad_value"] = gradients.value.data_ptr()
        fields["grad_initial"] = addresses(gradients.initial_state)
        fields["threads"] = torch.get_num_threads()
        _native.attention_backward(fields)
        return erased(gradients, mask)

    def step(self, call: StepCall) -> Tensor:
        check_own_memory(call.state)
        out = call.value.new_empty(call.value.shape)
        fields = _FIELDS.step(call)
        fields["out"] = out.data_ptr()
        fields["threads"] = torch.get_num_threads()
        _native.step(fields)
        written_in_place(*call.state)
        return out

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        """See `linattn_core.protocols.DecoderBackend`."""
        return decoder.refuses_decoder(description, weights)

    def compile_decoder(self, description: DecoderDescription, weights: str) -> NativeDecoder:
        """See `linattn_core.protocols.DecoderBackend`."""
        return decoder.CpuDecoder(description, weights)
