"""linattn::attention and linattn::attention_forward: the whole sequence, with gradients or without.

One operator would do, but torch enters an operator that has gradients twice for each call, the
second time from Python, and that is a large part of a short call without gradients.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from linattn_core import registry
from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.checks import check_decay, check_lengths
from linattn_core.operators.attention_backward import attention_backward
from linattn_core.operators.library import Flat, joined, parted, register, results
from linattn_core.state import LinearAttentionState, accumulation_dtype

_FLAT = Flat(AttentionCall)
_GRADIENTS = Flat(Gradients)
_SCHEMA = f"({_FLAT.schema}, str backend) -> (Tensor out, Tensor normalizer, Tensor s, Tensor z)"


def _attention(*arguments: Any) -> tuple[Tensor, ...]:
    call = _FLAT.unpack(arguments[:-1])
    check_lengths(call)
    if call.log_decay is not None:
        check_decay(call.log_decay)
    out, normalizer, state = registry.select(arguments[-1], call).attention(call)
    return (out, normalizer, *results(state, normalizer))


def _shapes(*arguments: Any) -> tuple[Tensor, ...]:
    call = _FLAT.unpack(arguments[:-1])
    out = call.value.new_empty(call.batch, call.heads, call.query_length, call.value_dim)
    normalizer = out.new_empty(out.shape[:3], dtype=accumulation_dtype(out.dtype))
    if call.is_causal and not call.return_state:
        return (out, normalizer, *results(None, normalizer))
    z_shape = (call.num_sequences, call.kv_heads, call.feature_dim)
    s = normalizer.new_empty(*z_shape, call.value_dim)
    return out, normalizer, s, normalizer.new_empty(z_shape)


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    out, normalizer, s, z = output
    tensors, ctx.others = parted(inputs)
    call = _FLAT.unpack(inputs[:-1])
    ctx.state_used, ctx.normalizer_used = call.return_state, call.return_normalizer
    # Causal gradients start from the initial state again, others read the sums over the keys.
    sums = (None, None) if call.is_causal else (s, z)
    ctx.save_for_backward(out, normalizer, *sums, *tensors)


def _autograd(
    ctx: Any, grad_out: Tensor, grad_normalizer: Tensor, grad_s: Tensor, grad_z: Tensor
) -> tuple[Tensor | None, ...]:
    output, tensors = ctx.saved_tensors[:4], ctx.saved_tensors[4:]
    grad_state = (grad_s, grad_z) if ctx.state_used else (None, None)
    upstream = (grad_out, *grad_state, grad_normalizer if ctx.normalizer_used else None)
    gradients = attention_backward(*upstream, *output, *joined(tensors, ctx.others))
    by_name = dict(zip(_GRADIENTS.names, gradients, strict=True))
    inputs = zip(_FLAT.names, tensors[:-1], strict=True)
    return (*(None if x is None else by_name.get(name) for name, x in inputs), None)


_differentiable = register(
    "attention", _SCHEMA, _attention, _shapes, backward=_autograd, context=_context
)
_forward = register("attention_forward", _SCHEMA, _attention, _shapes)


def attention(call: AttentionCall, backend: str) -> Output:
    """Runs the call on the backend of that name; the state is None unless it was wanted."""
    run = _differentiable if call.requires_grad else _forward
    out, normalizer, s, z = run(*_FLAT.pack(call), backend)
    return Output(out, normalizer, LinearAttentionState(s, z) if call.return_state else None)
