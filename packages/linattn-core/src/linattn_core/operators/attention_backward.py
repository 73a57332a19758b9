"""linattn::attention_backward: the gradients of linattn::attention, and theirs in turn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.operators.library import (
    HOW,
    in_full_precision,
    pair,
    register,
    select_backend,
    unpair,
)
from linattn_core.reference import chunked

SCHEMA = (
    "(Tensor grad_out, Tensor? grad_s, Tensor? grad_z, Tensor query, Tensor key, Tensor value, "
    "Tensor out, Tensor normalizer, Tensor? key_lengths, Tensor? cu_seqlens, "
    f"Tensor? s, Tensor? z, {HOW}) "
    "-> (Tensor query, Tensor key, Tensor value, Tensor s, Tensor z)"
)


@in_full_precision
def _attention_backward(
    grad_out: Tensor,
    grad_s: Tensor | None,
    grad_z: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    normalizer: Tensor,
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
    chosen = select_backend(
        query, key, value, key_lengths, cu_seqlens, s,
        is_causal, return_state, feature_map, backend, requires_grad,
    )  # fmt: skip
    result = chosen.attention_backward(
        grad_out,
        pair(grad_s, grad_z),
        query,
        key,
        value,
        out,
        normalizer,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        state=pair(s, z),
        is_causal=is_causal,
        feature_map=feature_map,
        eps=eps,
    )
    return (result.query, result.key, result.value, *unpair(result.state, normalizer))


def _attention_backward_shapes(
    grad_out: Tensor,
    grad_s: Tensor | None,
    grad_z: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    normalizer: Tensor,
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
        gradients.append(normalizer.new_empty(shape))
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

    The inputs `out` and `normalizer` are functions of the others and are treated as such, so the
    whole derivative goes to those.
    """
    is_causal, _, feature_map, eps, backend, _ = ctx.how
    *tensors, key_lengths, cu_seqlens = ctx.saved_tensors
    query, key, value, s, _ = tensors[3:]
    chosen = select_backend(
        query, key, value, key_lengths, cu_seqlens, s,
        is_causal, True, feature_map, backend, True,
    )  # fmt: skip
    if not chosen.double_backward:
        raise RuntimeError(
            f"backend {chosen.name!r} computes first derivatives only and a second derivative was "
            'asked for; pass backend="reference" to linear_attention.'
        )
    without_autocast = torch.autocast(query.device.type, enabled=False)
    with torch.enable_grad(), without_autocast:
        # Fresh names for all: grad_out may be a function of the queries, and the keys the queries
        # themselves, and what is wanted here is the derivative by each argument alone.
        alone = [
            None if x is None else x.view_as(x) if x.requires_grad else x.detach().requires_grad_()
            for x in tensors
        ]
        first = _reference_gradients(alone, key_lengths, cu_seqlens, is_causal, feature_map, eps)
        pairs = [
            (f, g) for f, g in zip(first, grads, strict=False) if f is not None and f.requires_grad
        ]
        wanted = [
            new
            for new, x in zip(alone, tensors, strict=True)
            if new is not None and x.requires_grad
        ]
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
        initial_state=pair(s, z),
        return_state=True,
        eps=eps,
    )
    outputs, given = [out], [grad_out]
    if grad_s is not None:
        outputs, given = [out, *state], [grad_out, grad_s, grad_z]
    inputs = [x for x in (query, key, value, s, z) if x is not None]
    return torch.autograd.grad(outputs, inputs, given, create_graph=True, allow_unused=True)


attention_backward = register(
    "attention_backward",
    SCHEMA,
    _attention_backward,
    _attention_backward_shapes,
    backward=_backward_autograd,
    context=_backward_context,
)
