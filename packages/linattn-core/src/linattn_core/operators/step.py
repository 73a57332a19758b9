"""linattn::step and linattn::step_: one decoding step, the state returned or updated in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core import pointwise, registry
from linattn_core.autocast import in_full_precision, without_autocast
from linattn_core.calls import StepCall
from linattn_core.operators import exported, sharding
from linattn_core.operators.library import Flat, register
from linattn_core.operators.transforms import (
    make_transformable,
    refuse_forward_mode,
    refuse_in_place,
)
from linattn_core.state import LinearAttentionState
from linattn_core.torch_private import find_observer, is_tracing
from linattn_core.values import check_own_memory, check_step_values

_FLAT = Flat(StepCall)
_SCHEMA = f"({_FLAT.schema}, str backend) -> (Tensor out, Tensor s, Tensor z)"
_SCHEMA_IN_PLACE = f"({Flat(StepCall, in_place=True).schema}, str backend) -> Tensor"


def _step_(*arguments: Any) -> Tensor:
    call = _FLAT.unpack(arguments[:-1])
    check_own_memory(call.state)
    check_step_values(call)
    return registry.select(arguments[-1], call).step(call)


def _step(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = _FLAT.unpack(arguments[:-1])
    check_step_values(call)
    call = call._replace(state=_copy_state(call.state))
    out = registry.select(arguments[-1], call).step(call)
    return (out, *call.state)


def _copy_state(state: LinearAttentionState) -> LinearAttentionState:
    """A contiguous copy: also of an expanded state, whose rows share memory."""
    dense = torch.contiguous_format
    return LinearAttentionState(
        state.s.clone(memory_format=dense), state.z.clone(memory_format=dense)
    )


def _shape(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> Tensor:
    return value.new_empty(*query.shape[:2], value.shape[2])


def _shapes(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    call = _FLAT.unpack(arguments[:-1])
    s, z = (x.new_empty(x.shape) for x in call.state)
    return _shape(*call[:3]), s, z


def _context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    call = _FLAT.unpack(inputs[:-1])
    decays = (None, None, None) if call.log_decay is None else (call.log_decay, *call.state)
    ctx.set_materialize_grads(False)  # zeros that torch makes are never DTensors
    ctx.save_for_backward(call.query, call.key, call.value, *output[1:], *decays)
    ctx.feature_map, ctx.eps, ctx.normalize = call.feature_map, call.eps, call.normalize


def _step_autograd(
    ctx: Any, grad_out: Tensor | None, grad_s: Tensor | None, grad_z: Tensor | None
) -> tuple[Tensor | None, ...]:
    saved = ctx.saved_tensors  # read once: activation checkpointing frees them then
    query, _, value, s, z, *_ = saved
    if grad_out is None:
        grad_out = value.new_zeros(*query.shape[:2], value.shape[-1])
    grad_s = torch.zeros_like(s) if grad_s is None else grad_s
    grad_z = torch.zeros_like(z) if grad_z is None else grad_z
    with without_autocast(grad_out.device.type):
        by_name = _step_gradients(ctx, saved, grad_out, grad_s, grad_z)
    return (*map(by_name.get, _FLAT.names), None)


def _step_gradients(
    ctx: Any, saved: Sequence[Tensor], grad_out: Tensor, grad_s: Tensor, grad_z: Tensor
) -> dict[str, Tensor]:
    """The chain rule of one step in differentiable operations, for any backend."""
    query, key, value, s, z, decay, s_before, z_before = saved
    phi = ctx.feature_map
    q_in, k_in, v = (x.to(s.dtype) for x in (query, key, value))
    heads = s.shape[1]
    groups = query.shape[1] // max(1, heads)
    q_in = q_in.unflatten(1, (heads, groups))  # (B, H_kv, G, F)
    q, k = pointwise.apply(phi, q_in), pointwise.apply(phi, k_in)
    g = grad_out.to(s.dtype).unflatten(1, (heads, groups))  # (B, H_kv, G, M)
    h: Tensor | float = 0.0
    if ctx.normalize:
        normalizer = (q * z[:, :, None]).sum(-1, keepdim=True) + ctx.eps  # (B, H_kv, G, 1)
        g = g / normalizer
        h = -(g * (q @ s)).sum(-1, keepdim=True) / normalizer
    grad_s = grad_s + q.mT @ g
    grad_z = grad_z + (q * h).sum(2)
    grad_q = (g @ s.mT + h * z[:, :, None]) * pointwise.derivative(phi, q_in)
    grad_k = (grad_s @ v[..., None])[..., 0] + grad_z
    grad_v = (k[..., None, :] @ grad_s)[..., 0, :]
    gradients = {
        "query": grad_q.flatten(1, 2).to(query.dtype),
        "key": (grad_k * pointwise.derivative(phi, k_in)).to(key.dtype),
        "value": grad_v.to(value.dtype),
    }
    if decay is None:
        return {**gradients, "s": grad_s, "z": grad_z}
    grad_s, grad_z = decay.exp()[..., None, None] * grad_s, decay.exp()[..., None] * grad_z
    grad_decay = (grad_s * s_before).sum((-2, -1)) + (grad_z * z_before).sum(-1)
    return {**gradients, "s": grad_s, "z": grad_z, "log_decay": grad_decay}


_differentiable = register(
    "step", _SCHEMA, _step, _shapes, backward=_step_autograd, context=_context
)
_transformed = make_transformable(_step, _context, _step_autograd)
_in_place = register("step_", _SCHEMA_IN_PLACE, _step_, _shape)


def step(call: StepCall, backend: str) -> tuple[Tensor, LinearAttentionState]:
    """The output (B, H, M) and the new state; the state of the call is not changed."""
    observer = find_observer(_FLAT.tensors(call))
    if observer == "forward mode":
        refuse_forward_mode()
    if observer == "onnx":
        return exported.step(call)
    if observer in ("func", "vmap"):
        out, s, z = _transformed(*_FLAT.pack(call), backend)
        return out, LinearAttentionState(s, z)
    sharded = observer == "dispatcher" and sharding.prepare()
    if not (call.requires_grad or sharded) and (observer == "nobody" or not is_tracing()):
        call = call._replace(state=_copy_state(call.state))
        return step_(call, backend), call.state
    out, s, z = _differentiable(*_FLAT.pack(call), backend)
    return out, LinearAttentionState(s, z)


def step_(call: StepCall, backend: str) -> Tensor:
    """The output (B, H, M); the state of the call is updated in place."""
    # Written out, as every function is a noticeable share of a step.
    query, key, value, (s, z), _, _, _, slots, decay, _ = call
    observer = find_observer((query, key, value, s, z, slots, decay))
    if observer == "nobody":
        check_own_memory(call.state)
        if slots is not None or decay is not None:
            check_step_values(call)
        chosen = registry.select_step(backend, call)
        return in_full_precision(query.device.type, chosen.step, call)
    if observer == "forward mode":
        refuse_forward_mode()
    if observer == "onnx":
        exported.refuse_in_place()
    if observer == "vmap":
        refuse_in_place()
    return cast(Tensor, _in_place(*_FLAT.pack(call), backend))
