"""linattn::attention and linattn::attention_forward: the whole sequence, with gradients or without.

There are two operators because torch enters one with gradients twice per call, the second time from
Python. That is a large part of the time of a short call without gradients.

Where no compiler, profiler or transform has to see the operator, its kernel is called without
torch's dispatcher, which takes as long as attention over sixteen positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output
from linattn_core.operators import direct, exported, sharding
from linattn_core.operators.attention_backward import attention_backward
from linattn_core.operators.gradients import GRADIENTS
from linattn_core.operators.library import (
    Flat,
    merge_arguments,
    pair,
    register,
    results,
    split_arguments,
)
from linattn_core.operators.transforms import make_transformable, refuse_forward_mode
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_core.torch_private import find_observer, is_tracing

_FLAT = Flat(AttentionCall)
_NO_STATE = (None, None)
_SCHEMA = f"({_FLAT.schema}, str backend) -> (Tensor out, Tensor s, Tensor z)"
_SCHEMA_WITH_GRADIENTS = _SCHEMA[:-1] + ", Tensor normalizer)"


def _forward_kernel(*arguments: Any) -> tuple[Tensor, ...]:
    output = direct.run(_FLAT.unpack(arguments[:-1]), arguments[-1])
    return (output.out, *results(output.state, output.out))


def _attention_kernel(*arguments: Any) -> tuple[Tensor, ...]:
    call = _FLAT.unpack(arguments[:-1])._replace(requires_grad=True)
    out, normalizer, state = direct.run(call, arguments[-1])
    return (out, *results(state, out), normalizer)


def _forward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call = _FLAT.unpack(arguments[:-1])
    out = call.value.new_empty(call.batch, call.heads, call.query_length, call.value_dim)
    if call.is_causal and not call.return_state:
        return (out, *results(None, out))
    z_shape = (call.num_sequences, call.kv_heads, call.feature_dim)
    dtype = accumulation_dtype(out.dtype)
    s = out.new_empty(*z_shape, call.value_dim, dtype=dtype)
    return out, s, out.new_empty(z_shape, dtype=dtype)


def _attention_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    out, s, z = _forward_shapes(*arguments)
    return out, s, z, out.new_empty(out.shape[:3], dtype=accumulation_dtype(out.dtype))


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, s, z, normalizer = output
    tensors, ctx.others = split_arguments(inputs)
    call = _FLAT.unpack(inputs[:-1])
    ctx.state_used, ctx.normalizer_used = call.return_state, call.return_normalizer
    ctx.set_materialize_grads(False)  # zeros that torch makes are never DTensors
    # Causal gradients compute S again from the initial state; others read the sums over the keys.
    sums = (None, None) if call.is_causal else (s, z)
    ctx.save_for_backward(out, normalizer, *sums, *tensors)


def _autograd(
    ctx: Any,
    grad_out: Tensor | None,
    grad_s: Tensor | None,
    grad_z: Tensor | None,
    grad_normalizer: Tensor | None,
) -> tuple[Tensor | None, ...]:
    # Read only once: activation checkpointing frees them when they are first read.
    out, normalizer, *saved = ctx.saved_tensors
    sums, tensors = saved[:2], saved[2:]
    call = _FLAT.unpack(merge_arguments(tensors, ctx.others)[:-1])
    gradients = attention_backward(
        call._replace(wanted_gradients=_FLAT.fields(ctx.needs_input_grad)),
        Output(out, normalizer, pair(*sums)),
        torch.zeros_like(out) if grad_out is None else grad_out,
        _state_gradient(grad_s, grad_z, call.value_dim) if ctx.state_used else None,
        ctx.others[-1],
        grad_normalizer if ctx.normalizer_used else None,
    )
    by_name = dict(zip(GRADIENTS.names, GRADIENTS.pack(gradients), strict=True))
    return (*(by_name.get(name) for name in _FLAT.names), None)


def _state_gradient(
    grad_s: Tensor | None, grad_z: Tensor | None, value_dim: int
) -> LinearAttentionState | None:
    """The upstream gradient of a state; None if neither S nor z has one."""
    if grad_s is None and grad_z is None:
        return None
    if grad_s is None:
        assert grad_z is not None
        grad_s = grad_z.new_zeros(*grad_z.shape, value_dim)
    if grad_z is None:
        grad_z = grad_s.new_zeros(grad_s.shape[:-1])
    return LinearAttentionState(grad_s, grad_z)


_forward = register("attention_forward", _SCHEMA, _forward_kernel, _forward_shapes)
_differentiable = register(
    "attention",
    _SCHEMA_WITH_GRADIENTS,
    _attention_kernel,
    _attention_shapes,
    backward=_autograd,
    context=_context,
)


_transformed = make_transformable(
    _attention_kernel, _context, _autograd, packed=_FLAT.names.index("cu_seqlens")
)


def attention(
    call: AttentionCall, backend: str
) -> tuple[Tensor, LinearAttentionState | None, Tensor | None]:
    """Output, state and normalizer (with eps) by the named backend; None for what is not wanted."""
    initial = call.initial_state or _NO_STATE  # written out, for short calls
    tensors = (
        call.query, call.key, call.value, call.key_lengths, call.cu_seqlens, call.attn_mask,
        call.log_decay, *initial,
    )  # fmt: skip
    observer = find_observer(tensors, requires_grad=call.requires_grad)
    if observer == "nobody":
        if not call.requires_grad:
            out, normalizer, state = direct.run(call, backend)
            if not (call.return_state or call.return_normalizer):
                return out, None, None
            return _select_results(call, out, state, normalizer)
        if direct.takes(call):
            return direct.differentiable(call, backend)
    if observer == "forward mode":
        refuse_forward_mode()
    if observer == "onnx":
        return _select_results(call, *exported.attention(call))
    if observer == "dispatcher":
        sharding.prepare()
    call = call._replace(requires_grad=call.requires_grad or is_tracing())
    arguments = (*_FLAT.pack(call), backend)
    if observer in ("func", "vmap"):
        out, s, z, normalizer = _transformed(*arguments)
    elif call.requires_grad or call.return_normalizer:
        out, s, z, normalizer = _differentiable(*arguments)
    else:
        out, s, z = _forward(*arguments)
        return _select_results(call, out, LinearAttentionState(s, z), None)
    return _select_results(call, out, LinearAttentionState(s, z), normalizer)


def _select_results(
    call: AttentionCall, out: Tensor, state: LinearAttentionState | None, normalizer: Tensor | None
) -> tuple[Tensor, LinearAttentionState | None, Tensor | None]:
    """The results, None for each that the call does not return."""
    return (
        out,
        state if call.return_state else None,
        normalizer if call.return_normalizer else None,
    )
