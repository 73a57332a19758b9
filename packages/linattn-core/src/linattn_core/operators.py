"""The torch operators: schema, shape function and autograd of each, declared once for all backends.

    linattn::attention            forward; also returns the normaliser for the backward pass
    linattn::attention_backward   its gradients
    linattn::step                 one decoding step, the new state returned
    linattn::step_                the same, the state updated in place

The backend's name travels as an argument, so that forward and backward agree although autograd
runs the latter on threads of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

from linattn_core import pointwise, registry
from linattn_core.checks import check_lengths
from linattn_core.reference import chunked
from linattn_core.registry import AttentionCall, Backend, StepCall
from linattn_core.state import LinearAttentionState, accumulation_dtype

_library = torch.library.Library("linattn", "DEF")

P = ParamSpec("P")
R = TypeVar("R")

_HOW = (
    "bool is_causal, bool return_state, str feature_map, float eps, str backend, bool requires_grad"
)
_SCHEMAS = {
    "attention": (
        "(Tensor query, Tensor key, Tensor value, Tensor? key_lengths, Tensor? cu_seqlens, "
        f"Tensor? s, Tensor? z, {_HOW}) -> (Tensor out, Tensor s, Tensor z, Tensor normaliser)"
    ),
    "attention_backward": (
        "(Tensor grad_out, Tensor? grad_s, Tensor? grad_z, Tensor query, Tensor key, Tensor value, "
        "Tensor out, Tensor normaliser, Tensor? key_lengths, Tensor? cu_seqlens, "
        f"Tensor? s, Tensor? z, {_HOW}) "
        "-> (Tensor query, Tensor key, Tensor value, Tensor s, Tensor z)"
    ),
    "step": (
        "(Tensor query, Tensor key, Tensor value, Tensor s, Tensor z, "
        "str feature_map, float eps, str backend, bool requires_grad) "
        "-> (Tensor out, Tensor s, Tensor z)"
    ),
    "step_": (
        "(Tensor query, Tensor key, Tensor value, Tensor(a!) s, Tensor(b!) z, "
        "str feature_map, float eps, str backend) -> Tensor"
    ),
}
for _name, _schema in _SCHEMAS.items():
    _library.define(_name + _schema, tags=(torch.Tag.pt2_compliant_tag,))


def _pair(s: Tensor | None, z: Tensor | None) -> LinearAttentionState | None:
    return None if s is None or z is None else LinearAttentionState(s, z)


def _unpair(state: LinearAttentionState | None, like: Tensor) -> tuple[Tensor, Tensor]:
    """The two tensors of a state; empty ones where there is none, as a schema has no Tensor?
    results."""
    return (like.new_empty(0), like.new_empty(0)) if state is None else (state.s, state.z)


def _in_full_precision(kernel: Callable[P, R]) -> Callable[P, R]:
    """The same kernel, out of reach of autocast, which would lower what is kept in float32."""

    @functools.wraps(kernel)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        kind = cast(Tensor, args[0]).device.type
        if not torch.is_autocast_enabled(kind):  # a decoding step would feel entering the context
            return kernel(*args, **kwargs)
        with torch.autocast(kind, enabled=False):
            return kernel(*args, **kwargs)

    return run


def _select(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    is_causal: bool,
    return_state: bool,
    feature_map: str,
    backend: str,
    requires_grad: bool,
) -> Backend:
    return registry.select(
        backend,
        lambda: AttentionCall.of(
            query,
            key,
            value,
            feature_map,
            is_causal=is_causal,
            padded=key_lengths is not None,
            packed=cu_seqlens is not None,
            initial_state=is_causal and s is not None,
            return_state=return_state,
            requires_grad=requires_grad,
        ),
    )


# --- the whole sequence ---------------------------------------------------------------------------


@_in_full_precision
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    is_causal: bool,
    return_state: bool,
    feature_map: str,
    eps: float,
    backend: str,
    requires_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    check_lengths(key_lengths, cu_seqlens, key.shape[2])
    chosen = _select(
        query, key, value, key_lengths, cu_seqlens, s,
        is_causal, return_state, feature_map, backend, requires_grad,
    )  # fmt: skip
    result = chosen.attention(
        query,
        key,
        value,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        initial_state=_pair(s, z),
        is_causal=is_causal,
        keep_state=return_state,
        feature_map=feature_map,
        eps=eps,
    )
    return (result.out, *_unpair(result.state, result.normaliser), result.normaliser)


def _attention_shapes(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    is_causal: bool,
    return_state: bool,
    *how: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, length, feature_dim = query.shape
    value_dim = value.shape[3]
    kept = accumulation_dtype(value.dtype)
    out = value.new_empty(batch, heads, length, value_dim)
    normaliser = value.new_empty(batch, heads, length, dtype=kept)
    if is_causal and not return_state:
        return out, value.new_empty(0, dtype=kept), value.new_empty(0, dtype=kept), normaliser
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    last_s = value.new_empty(sequences, heads, feature_dim, value_dim, dtype=kept)
    last_z = value.new_empty(sequences, heads, feature_dim, dtype=kept)
    return out, last_s, last_z, normaliser


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, key_lengths, cu_seqlens, s, z, *how = inputs
    out, last_s, last_z, normaliser = output
    is_causal, return_state = how[:2]
    # Forwards the starting state is needed again, without causality the sums over the keys are.
    state = (s, z) if is_causal else (last_s, last_z)
    ctx.save_for_backward(query, key, value, out, normaliser, key_lengths, cu_seqlens, *state)
    ctx.how, ctx.state_used, ctx.state_given = how, return_state, s is not None


def _attention_autograd(
    ctx: Any, grad_out: Tensor, grad_s: Tensor, grad_z: Tensor, _: Tensor
) -> tuple[Tensor | None, ...]:
    grad_state = (grad_s, grad_z) if ctx.state_used else (None, None)
    query, key, value, s, z = torch.ops.linattn.attention_backward(
        grad_out, *grad_state, *ctx.saved_tensors, *ctx.how
    )
    given = (s, z) if ctx.state_given else (None, None)
    return (query, key, value, None, None, *given, *(None for _ in ctx.how))


# --- its gradients --------------------------------------------------------------------------------


@_in_full_precision
def _attention_backward(
    grad_out: Tensor,
    grad_s: Tensor | None,
    grad_z: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    normaliser: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    is_causal: bool,
    return_state: bool,
    feature_map: str,
    eps: float,
    backend: str,
    requires_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    chosen = _select(
        query, key, value, key_lengths, cu_seqlens, s,
        is_causal, return_state, feature_map, backend, requires_grad,
    )  # fmt: skip
    result = chosen.attention_backward(
        grad_out,
        _pair(grad_s, grad_z),
        query,
        key,
        value,
        out,
        normaliser,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        state=_pair(s, z),
        is_causal=is_causal,
        feature_map=feature_map,
        eps=eps,
    )
    return (result.query, result.key, result.value, *_unpair(result.state, normaliser))


def _attention_backward_shapes(
    grad_out: Tensor,
    grad_s: Tensor | None,
    grad_z: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    normaliser: Tensor,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    s: Tensor | None,
    z: Tensor | None,
    is_causal: bool,
    *how: Any,
) -> tuple[Tensor, ...]:
    gradients = [x.new_empty(x.shape) for x in (query, key, value)]
    for x in (s, z):
        shape = x.shape if is_causal and x is not None else (0,)
        gradients.append(normaliser.new_empty(shape))
    return tuple(gradients)


def _backward_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    grad_out, grad_s, grad_z, query, key, value, _, _, key_lengths, cu_seqlens, s, z, *how = inputs
    ctx.how = how
    state = (s, z) if how[0] else (None, None)
    ctx.save_for_backward(
        grad_out, grad_s, grad_z, query, key, value, *state, key_lengths, cu_seqlens
    )


def _backward_autograd(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """Double backward, by differentiating the chunked reference twice.

    The inputs `out` and `normaliser` are functions of the others and are treated as such, so the
    whole derivative goes to those.
    """
    is_causal, _, feature_map, eps, backend, _ = ctx.how
    *tensors, key_lengths, cu_seqlens = ctx.saved_tensors
    query, key, value, s, _ = tensors[3:]
    chosen = _select(
        query, key, value, key_lengths, cu_seqlens, s,
        is_causal, True, feature_map, backend, True,
    )  # fmt: skip
    if not chosen.double_backward:
        raise RuntimeError(
            f"backend {chosen.name!r} computes first derivatives only and a second derivative was "
            'asked for; pass backend="reference" to linear_attention.'
        )
    leaf = [
        None if x is None else x if x.requires_grad else x.detach().requires_grad_()
        for x in tensors
    ]
    without_autocast = torch.autocast(query.device.type, enabled=False)
    with torch.enable_grad(), without_autocast:
        first = _reference_gradients(leaf, key_lengths, cu_seqlens, is_causal, feature_map, eps)
        pairs = [
            (f, g) for f, g in zip(first, grads, strict=False) if f is not None and f.requires_grad
        ]
        wanted = [x for x in tensors if x is not None and x.requires_grad]
        second = iter(
            torch.autograd.grad(
                [f for f, _ in pairs],
                wanted,
                [g for _, g in pairs],
                create_graph=True,
                allow_unused=True,
            )
        )
    found = [next(second) if x is not None and x.requires_grad else None for x in tensors]
    return (*found[:6], None, None, None, None, *found[6:], *(None for _ in ctx.how))


def _reference_gradients(
    tensors: list[Tensor | None],
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    is_causal: bool,
    feature_map: str,
    eps: float,
) -> tuple[Tensor | None, ...]:
    """First gradients of (query, key, value, s, z) as differentiable functions of `tensors`."""
    grad_out, grad_s, grad_z, query, key, value, s, z = tensors
    assert query is not None and key is not None and value is not None
    out, state = chunked(
        query,
        key,
        value,
        is_causal=is_causal,
        feature_map=feature_map,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        initial_state=_pair(s, z),
        return_state=True,
        eps=eps,
    )
    outputs, given = [out], [grad_out]
    if grad_s is not None:
        outputs, given = [out, *state], [grad_out, grad_s, grad_z]
    inputs = [x for x in (query, key, value, s, z) if x is not None]
    return torch.autograd.grad(outputs, inputs, given, create_graph=True, allow_unused=True)


# --- one step -------------------------------------------------------------------------------------


@_in_full_precision
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


@_in_full_precision
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
    normaliser = (q * z).sum(-1, keepdim=True) + ctx.eps  # (B, H, 1)
    numerator = (q[..., None, :] @ s)[..., 0, :]
    g = grad_out.to(s.dtype) / normaliser  # (B, H, M)
    h = -(g * numerator).sum(-1, keepdim=True) / normaliser
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


# --- registration ---------------------------------------------------------------------------------

for _name, _kernel, _shapes in (
    ("attention", _attention, _attention_shapes),
    ("attention_backward", _attention_backward, _attention_backward_shapes),
    ("step", _step, _step_shapes),
    ("step_", _step_, _step_shape),
):
    _library.impl(_name, _kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"linattn::{_name}", _shapes, lib=_library)
for _name, _backward, _context in (
    ("attention", _attention_autograd, _attention_context),
    ("attention_backward", _backward_autograd, _backward_context),
    ("step", _step_autograd, _step_context),
):
    torch.library.register_autograd(
        f"linattn::{_name}", _backward, setup_context=_context, lib=_library
    )

attention = torch.ops.linattn.attention
step = torch.ops.linattn.step


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

    The dispatcher takes a quarter of the whole call for one sequence. Subclasses of Tensor, which
    stand for something else than memory, go through it.
    """
    arguments = (query, key, value, s, z)
    if torch.compiler.is_compiling() or any(type(x) is not Tensor for x in arguments):
        return cast(Tensor, torch.ops.linattn.step_(*arguments, feature_map, eps, backend))
    return _step_(*arguments, feature_map, eps, backend)
