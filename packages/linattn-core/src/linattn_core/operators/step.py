"""linattn::step and linattn::step_: one decoding step, the state returned or updated in place."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from linattn_core import pointwise, registry
from linattn_core.calls import StepCall
from linattn_core.operators.library import Flat, register
from linattn_core.state import LinearAttentionState
from linattn_core.torch_private import is_unobserved

_FLAT = Flat(StepCall)
_SCHEMA = f"({_FLAT.schema}, str backend) -> (Tensor out, Tensor s, Tensor z)"
_SCHEMA_IN_PLACE = f"({Flat(StepCall, in_place=True).schema}, str backend) -> Tensor"


def _step_(*arguments: Any) -> Tensor:
    call = _FLAT.unpack(arguments[:-1])
    return registry.select(arguments[-1], call).step(call)


def _step(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = _FLAT.unpack(arguments[:-1])
    call = call._replace(state=_copied(call.state))
    out = registry.select(arguments[-1], call).step(call)
    return (out, *call.state)


def _copied(state: LinearAttentionState) -> LinearAttentionState:
    """A copy in memory of its own for each row, which an expanded state lacks."""
    dense = torch.contiguous_format
    return LinearAttentionState(
        state.s.clone(memory_format=dense), state.z.clone(memory_format=dense)
    )


def _shape(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return value.new_empty(value.shape)


def _shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = _FLAT.unpack(arguments[:-1])
    value, s, z = (x.new_empty(x.shape) for x in (call.value, *call.state))
    return value, s, z


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    call = _FLAT.unpack(inputs[:-1])
    ctx.save_for_backward(call.query, call.key, call.value, *output[1:])
    ctx.feature_map, ctx.eps = call.feature_map, call.eps


def _step_autograd(
    ctx: Any, grad_out: Tensor, grad_s: Tensor, grad_z: Tensor
) -> tuple[Tensor | None, ...]:
    with torch.autocast(grad_out.device.type, enabled=False):
        return _step_gradients(ctx, grad_out, grad_s, grad_z)


def _step_gradients(
    ctx: Any, grad_out: Tensor, grad_s: Tensor, grad_z: Tensor
) -> tuple[Tensor | None, ...]:
    """The chain rule of one step in differentiable operations, for any backend."""
    query, key, value, s, z = ctx.saved_tensors
    phi = ctx.feature_map
    q_in, k_in, v = (x.to(s.dtype) for x in (query, key, value))
    q, k = pointwise.apply(phi, q_in), pointwise.apply(phi, k_in)
    normalizer = (q * z).sum(-1, keepdim=True) + ctx.eps  # (B, H, 1)
    numerator = (q[..., None, :] @ s)[..., 0, :]
    g = grad_out.to(s.dtype) / normalizer  # (B, H, M)
    h = -(g * numerator).sum(-1, keepdim=True) / normalizer
    grad_s = grad_s + q[..., None] * g[..., None, :]
    grad_z = grad_z + q * h
    grad_q = (s @ g[..., None])[..., 0] + h * z
    grad_k = (grad_s @ v[..., None])[..., 0] + grad_z
    grad_v = (k[..., None, :] @ grad_s)[..., 0, :]
    grad_q = grad_q * pointwise.derivative(phi, q_in)
    grad_k = grad_k * pointwise.derivative(phi, k_in)
    return (
        grad_q.to(query.dtype),
        grad_k.to(key.dtype),
        grad_v.to(value.dtype),
        grad_s,
        grad_z,
        *(None for _ in range(len(_FLAT.names) - 4)),
    )


_differentiable = register(
    "step", _SCHEMA, _step, _shapes, backward=_step_autograd, context=_context
)
_in_place = register("step_", _SCHEMA_IN_PLACE, _step_, _shape)


def step(call: StepCall, backend: str) -> tuple[Tensor, LinearAttentionState]:
    """The output (B, H, M) and the new state; that of the call stays as it was."""
    if not call.requires_grad:
        call = call._replace(state=_copied(call.state))
        return step_(call, backend), call.state
    out, s, z = _differentiable(*_FLAT.pack(call), backend)
    return out, LinearAttentionState(s, z)


def step_(call: StepCall, backend: str) -> Tensor:
    """The output (B, H, M); the state of the call is updated in place."""
    if is_unobserved(_FLAT.tensors(call)):
        return registry.select(backend, call).step(call)
    return cast(Tensor, _in_place(*_FLAT.pack(call), backend))
