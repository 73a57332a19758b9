"""The RNN: one key and one query at a time (equations 16 to 20)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.reference.definition import Result, features, run
from linattn_core.state import LinearAttentionState


def recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    feature_map: Any = "elu",
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    eps: float = 1e-6,
) -> Tensor | Result:
    """Linear attention as a loop over positions (equations 16 to 20).

        s_i = s_{i-1} + phi(k_i) v_i^T        z_i = z_{i-1} + phi(k_i)
        V'_i = phi(q_i)^T s_i / (phi(q_i)^T z_i + eps)

    Without causality every query reads the final state. Arguments, shapes and results are those of
    `linear_attention`; everything is computed in the inputs' dtype.

    Cost: O(N F M) time, O(F M) memory a head without gradients.
    """
    return run(
        _attend,
        query,
        key,
        value,
        cu_seqlens=cu_seqlens,
        key_lengths=key_lengths,
        initial_state=initial_state,
        return_state=return_state,
        is_causal=is_causal,
        feature_map=feature_map,
        eps=eps,
    )


def _read(query: Tensor, state: LinearAttentionState, eps: float) -> Tensor:
    """phi(q)^T s / (phi(q)^T z + eps) for queries (B, H, n, F)."""
    query = query.to(state.s.dtype)
    return query @ state.s / (query @ state.z[..., None] + eps)


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    feature_map: Any,
    eps: float,
    initial_state: LinearAttentionState | None,
    key_lengths: Tensor | None,
) -> Result:
    q, k, v, state = features(query, key, value, feature_map, key_lengths, initial_state)
    outputs = []
    for i in range(k.shape[2]):
        k_i, v_i = k[:, :, i], v[:, :, i]  # (B, H, F), (B, H, M)
        update = k_i[..., None].to(v.dtype) * v_i[..., None, :]
        state = LinearAttentionState(state.s + update.to(state.s.dtype), state.z + k_i)
        if is_causal:
            outputs.append(_read(q[:, :, i : i + 1], state, eps))
    if is_causal:
        out = torch.cat(outputs, 2) if outputs else torch.zeros_like(value)
    else:
        out = _read(q, state, eps)
    return out.to(value.dtype), state
