"""linattn::step and linattn::step_: one decoding step, the state returned or updated in place."""

from __future__ import annotations

import functools
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core import pointwise, registry
from linattn_core.operators.library import in_full_precision, register
from linattn_core.registry import StepCall
from linattn_core.state import LinearAttentionState

STEP_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor s, Tensor z, "
    "str feature_map, float eps, str backend, bool requires_grad) "
    "-> (Tensor out, Tensor s, Tensor z)"
)
STEP_IN_PLACE_SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor(a!) s, Tensor(b!) z, "
    "str feature_map, float eps, str backend) -> Tensor"
)


@in_full_precision
def _step_(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    s: Tensor,
    z: Tensor,
    feature_map: str,
    eps: float,
    backend: str,
) -> Tensor:
    chosen = registry.select(backend, lambda: StepCall.of(query, value, feature_map, False))
    state = LinearAttentionState(s, z)
    return chosen.step_(query, key, value, state, feature_map=feature_map, eps=eps)


@in_full_precision
def _step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    s: Tensor,
    z: Tensor,
    feature_map: str,
    eps: float,
    backend: str,
    requires_grad: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    chosen = registry.select(backend, lambda: StepCall.of(query, value, feature_map, requires_grad))
    state = LinearAttentionState(*(x.clone(memory_format=torch.contiguous_format) for x in (s, z)))
    out = chosen.step_(query, key, value, state, feature_map=feature_map, eps=eps)
    return out, state.s, state.z


def _step_shape(query: Tensor, key: Tensor, value: Tensor, *how: Any) -> Tensor:
    return value.new_empty(value.shape)


def _step_shapes(
    query: Tensor, key: Tensor, value: Tensor, s: Tensor, z: Tensor, *how: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return value.new_empty(value.shape), s.new_empty(s.shape), z.new_empty(z.shape)


def _step_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, _, _, feature_map, eps, *_ = inputs
    ctx.save_for_backward(query, key, value, *output[1:])
    ctx.feature_map, ctx.eps = feature_map, eps


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
        *(None for _ in range(4)),
    )


step = register(
    "step", STEP_SCHEMA, _step, _step_shapes, backward=_step_autograd, context=_step_context
)
_step_operator = register("step_", STEP_IN_PLACE_SCHEMA, _step_, _step_shape)


@functools.cache
def _plain_keys(on_gpu: bool) -> frozenset[int]:
    """How the dispatcher sees tensors that are nothing but their memory.

    Asked for a GPU's only when a tensor is there, it starts CUDA in no process by itself.
    """
    device = "cuda" if on_gpu else "cpu"
    plain = [torch.empty(0, device=device)]
    with torch.inference_mode():
        plain.append(torch.empty(0, device=device))
    return frozenset(torch._C._dispatch_keys(x).raw_repr() for x in plain)


def _is_plain_memory(x: Tensor) -> bool:
    return type(x) is Tensor and torch._C._dispatch_keys(x).raw_repr() in _plain_keys(x.is_cuda)


def _watched() -> bool:
    """Whether something follows the operations that are called: a compiler, a mode, a tracer."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    )


def step_(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    s: Tensor,
    z: Tensor,
    feature_map: str,
    eps: float,
    backend: str,
) -> Tensor:
    """linattn::step_, called past torch's dispatcher where only a compiler would need that.

    For one sequence the dispatcher is a good part of the whole call. Whatever stands for something
    else than its memory (subclasses, negated views, tensors that are being traced) goes through it.
    """
    if not _watched() and all(map(_is_plain_memory, (query, key, value, s, z))):
        return _step_(query, key, value, s, z, feature_map, eps, backend)
    return cast(Tensor, _step_operator(query, key, value, s, z, feature_map, eps, backend))
