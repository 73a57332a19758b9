"""The definition, with an N x L matrix of weights: the oracle of the tests, in float64."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall
from linattn_core.reference import decay
from linattn_core.reference.definition import Features, Options, Sums, run
from linattn_core.state import LinearAttentionState


def quadratic(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    enable_gqa: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Linear attention by its definition (equations 4, 8 and 9).

        V'_i = sum_j w_ij V_j / (sum_j w_ij + eps),   w_ij = d_ij phi(Q_i) . phi(K_j)

    The sums run over all keys, or over j <= i when causal; an `initial_state` is added to them.
    d_ij is 1, or with `log_decay` g the factor exp(sum of g_m over j < m <= i).

    Arguments, shapes and results are those of `linear_attention`, without `backend`, but the
    arguments are not checked. `enable_gqa` has no effect: groups follow from the numbers of heads.
    Everything is computed in the inputs' dtype.

    Cost: O(N L (F + M)) time, O(N L) memory per head.
    """
    return run(_attend, AttentionCall(query, key, value, **options))  # type: ignore[arg-type]


def _attend(x: Features) -> Sums:
    weights = x.query @ x.key.mT  # (B, H, N, L)
    if x.is_causal:
        later = torch.ones(weights.shape[-2:], dtype=torch.bool, device=weights.device).triu(1)
        weights = weights.masked_fill(later, 0)
    query, key, (s, z), (s_decayed, z_decayed) = x.query, x.key, x.state, x.state
    if x.decay is not None:
        weights = weights * decay.between(x.decay)
        query, key = query * decay.from_start(x.decay), key * decay.to_end(x.decay)
        across = decay.across(x.decay)
        s_decayed, z_decayed = s * across[..., None], z * across
    numerator = weights.to(x.value.dtype) @ x.value + query.to(s.dtype) @ s  # (B, H, N, M)
    normalizer = weights.sum(-1, keepdim=True) + query.to(z.dtype) @ z[..., None]
    s_new = (key.mT.to(x.value.dtype) @ x.value).to(s.dtype)
    state = LinearAttentionState(s_decayed + s_new, z_decayed + key.sum(-2).to(z.dtype))
    return Sums(numerator, normalizer, state)
