"""linattn::attention: the whole sequence, forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.checks import check_lengths
from linattn_core.operators.library import (
    HOW,
    in_full_precision,
    pair,
    register,
    select_backend,
    unpair,
)
from linattn_core.state import accumulation_dtype

SCHEMA = (
    "(Tensor query, Tensor key, Tensor value, Tensor? key_lengths, Tensor? cu_seqlens, "
    f"Tensor? s, Tensor? z, {HOW}) -> (Tensor out, Tensor s, Tensor z, Tensor normalizer)"
)


@in_full_precision
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
    chosen = select_backend(
        query, key, value, key_lengths, cu_seqlens, s,
        is_causal, return_state, feature_map, backend, requires_grad,
    )  # fmt: skip
    result = chosen.attention(
        query,
        key,
        value,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        initial_state=pair(s, z),
        is_causal=is_causal,
        keep_state=return_state,
        feature_map=feature_map,
        eps=eps,
    )
    return (result.out, *unpair(result.state, result.normalizer), result.normalizer)


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
    normalizer = value.new_empty(batch, heads, length, dtype=kept)
    if is_causal and not return_state:
        return out, value.new_empty(0, dtype=kept), value.new_empty(0, dtype=kept), normalizer
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    last_s = value.new_empty(sequences, heads, feature_dim, value_dim, dtype=kept)
    last_z = value.new_empty(sequences, heads, feature_dim, dtype=kept)
    return out, last_s, last_z, normalizer


def _attention_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, key_lengths, cu_seqlens, s, z, *how = inputs
    out, last_s, last_z, normalizer = output
    is_causal, return_state = how[:2]
    # Forwards the starting state is needed again, without causality the sums over the keys are.
    state = (s, z) if is_causal else (last_s, last_z)
    ctx.save_for_backward(query, key, value, out, normalizer, key_lengths, cu_seqlens, *state)
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


attention = register(
    "attention",
    SCHEMA,
    _attention,
    _attention_shapes,
    backward=_attention_autograd,
    context=_attention_context,
)
