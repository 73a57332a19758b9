"""The definition, as a matrix of N x L weights: the oracle when run in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core.reference.definition import Result, features, run
from linattn_core.state import LinearAttentionState


def quadratic(
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
    """Linear attention by its definition (equations 4, 8 and 9).

        V'_i = sum_j (phi(Q_i) . phi(K_j)) V_j / (sum_j phi(Q_i) . phi(K_j) + eps)

    the sums over all keys, or over j <= i when causal. Arguments, shapes and results are those of
    `linear_attention`; everything is computed in the inputs' dtype.

    Cost: O(N L (F + M)) time, O(N L) memory a head.
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
    q, k, v, (s, z) = features(query, key, value, feature_map, key_lengths, initial_state)
    weights = q @ k.mT  # (B, H, N, L)
    if is_causal:
        later = torch.ones(weights.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        weights = weights.masked_fill(later, 0)
    numerator = weights.to(v.dtype) @ v + q.to(s.dtype) @ s  # (B, H, N, M)
    normalizer = weights.sum(-1, keepdim=True) + q.to(z.dtype) @ z[..., None] + eps
    state = LinearAttentionState(s + (k.mT.to(v.dtype) @ v).to(s.dtype), z + k.sum(-2).to(z.dtype))
    return (numerator / normalizer).to(value.dtype), state
