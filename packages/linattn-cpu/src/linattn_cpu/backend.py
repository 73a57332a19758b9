"""The backend "cpu": passes the addresses of tensors to native code."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.decoder_spec import DecoderDescription, NativeDecoder
from linattn_core.native import (
    Fields,
    Upstream,
    address,
    make_readable,
    mark_written,
    new_gradients,
)
from linattn_core.reference.decay import exp_without_subnormals
from linattn_core.reference.definition import decay_of_present
from linattn_core.state import SUMS, LinearAttentionState, decay_state
from linattn_cpu import _native, decoder, memory

_FIELDS = Fields(_native)
_NONE = torch.empty(0, device="cpu")  # its address is null


class CpuBackend:
    """Runs every call with CPU tensors.

    Feature map, sums and normalizer take one pass over the sequence. The backward pass computes
    again what it needs, and keeps one number per position.
    """

    name = "cpu"
    speed = 10
    double_backward = True
    # How many operations so many steps are, which only multiply and add in registers: the rate of
    # them is the processor's limit.
    fused_multiply_adds = staticmethod(_native.fused_multiply_adds)

    @property
    def description(self) -> str:
        """The build of the kernels in use, those that this machine can run, and the threads."""
        usable, best = _native.instruction_sets(), _native.machine_sets()[0]
        built = ", ".join(usable)
        if best not in usable:
            built += (
                f"; {best} would be faster and was not compiled: install linattn-cpu again here"
            )
        return (
            f"C++ kernels for {_native.instruction_set()} (usable here: {built}), threads by "
            f"{_native.threading}"
        )

    def unusable(self) -> str | None:
        return None

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Refuses tensors on other devices than the CPU."""
        if call.query.is_cpu:
            return None
        return f"it runs on CPU tensors and these are on {call.device}; move them to the CPU."

    def attention(self, call: AttentionCall) -> Output:
        call = make_readable(call)
        (batch, heads, length, _), value = call.query.shape, call.value
        dtype, device = SUMS[value.dtype], value.device
        out = memory.empty(batch, heads, length, value.shape[3], dtype=value.dtype)
        normalizer = _NONE
        if call.requires_grad or call.return_normalizer:
            normalizer = torch.empty(batch, heads, length, dtype=dtype, device=device)
        state = None
        if call.return_state or not call.is_causal:
            state = LinearAttentionState.zeros(
                call.num_sequences, call.kv_heads, call.feature_dim, call.value_dim,
                dtype=dtype, device=device,
            )  # fmt: skip
        output = Output(out, normalizer, state)
        _native.attention_forward(_complete(_FIELDS.forward(call, output), call))
        return output

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        grad_normalizer: Tensor | None = None,
    ) -> Gradients:
        if call.is_causal and _wants_state_alone(call):
            grads = (grad_out, grad_normalizer, grad_state)
            call, grad_out, grad_normalizer, grad_state = _as_noncausal(call, *grads)
        upstream = Upstream.of(call, output, grad_out, grad_state, grad_normalizer)
        call = upstream.call
        gradients = new_gradients(call, call.wanted_gradients, memory.empty_like)
        scratch = torch.empty_like(upstream.output.normalizer)
        fields = _complete(_FIELDS.backward(upstream, gradients), call)
        fields["scratch"] = scratch.data_ptr()
        fields["grad_log_decay"] = address(gradients.log_decay)
        _native.attention_backward(fields)
        return gradients

    def step(self, call: StepCall) -> Tensor:
        value, slots, decay = call.value, call.state_indices, call.log_decay
        out = value.new_empty(*call.query.shape[:2], value.shape[2])
        # Variables keep possible copies alive, because the kernel only gets their addresses.
        slots = None if slots is None else slots.to(torch.int64).contiguous()
        decay = None if decay is None else decay.contiguous()
        fields = _FIELDS.step(call)
        fields["state_indices"] = 0 if slots is None else slots.data_ptr()
        fields["log_decay"] = 0 if decay is None else decay.data_ptr()
        fields["out"] = out.data_ptr()
        fields["threads"] = torch.get_num_threads()
        _native.step(fields)
        mark_written(*call.state)
        return out

    def empty_cache(self) -> None:
        """See `linattn_core.protocols.CachingBackend`."""
        _native.CachedMemory.empty()

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        """See `linattn_core.protocols.DecoderBackend`."""
        return decoder.refuses_decoder(description, weights)

    def compile_decoder(self, description: DecoderDescription, weights: str) -> NativeDecoder:
        """See `linattn_core.protocols.DecoderBackend`."""
        return decoder.CpuDecoder(description, weights)


def _wants_state_alone(call: AttentionCall) -> bool:
    """Whether the gradient of the initial state is the only one, and one pass can compute it."""
    wanted = [x for x in call.wanted_gradients if getattr(call, x) is not None]
    if wanted != ["initial_state"] or call.log_decay is None:
        return wanted == ["initial_state"]
    # A decay would be rounded to half precision.
    return call.cu_seqlens is None and call.log_decay.dtype == call.value_dtype


def _as_noncausal(
    call: AttentionCall,
    grad_out: Tensor,
    grad_normalizer: Tensor | None,
    grad_state: LinearAttentionState | None,
) -> tuple[AttentionCall, Tensor, Tensor | None, LinearAttentionState | None]:
    """A call that has the same gradient of the initial state, and its upstream gradients.

    Every query reads the initial state, as non-causal queries do, so one pass over the queries is
    enough. A decay multiplies what they read of it, up to their own position.
    """
    call = call._replace(is_causal=False)
    if call.cu_seqlens is not None:
        return call, grad_out, grad_normalizer, grad_state
    if call.log_decay is not None:
        decay = decay_of_present(call)
        before = exp_without_subnormals(decay.cumsum(-1)).repeat_interleave(call.groups, 1)
        grad_out = grad_out * before[..., None]
        if grad_normalizer is not None:
            grad_normalizer = grad_normalizer * before
        if grad_state is not None:
            grad_state = decay_state(grad_state, decay.sum(-1).exp())
    key, value = call.key[:, :, :0], call.value[:, :, :0]
    call = call._replace(key=key, value=value, key_lengths=None, attn_mask=None, log_decay=None)
    return call, grad_out, grad_normalizer, grad_state


def _complete(fields: dict[str, Any], call: AttentionCall) -> dict[str, Any]:
    """The fields with those that these kernels alone read."""
    fields["log_decay"] = 0 if call.log_decay is None else call.log_decay.data_ptr()
    fields["threads"] = torch.get_num_threads()
    return fields
