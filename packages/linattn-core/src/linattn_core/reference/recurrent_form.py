"""The RNN: one key and one query at a time (equations 16 to 20)."""

from __future__ import annotations

from typing import Any, Unpack

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall
from linattn_core.reference.definition import Features, Options, Sums, run
from linattn_core.state import LinearAttentionState


def recurrent(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    enable_gqa: bool = False,
    **options: Unpack[Options],
) -> Any:
    """Linear attention as a loop over positions (equations 16 to 20).

        s_i = d_i s_{i-1} + phi(k_i) v_i^T        z_i = d_i z_{i-1} + phi(k_i)
        V'_i = phi(q_i)^T s_i / (phi(q_i)^T z_i + eps)

    d_i is 1, or exp(log_decay_i). A non-causal query reads the final state. Arguments, shapes and
    results are as for `quadratic`.

    Cost: O((N + L) F M) time, O(F M) memory per head without gradients.
    """
    return run(_attend, AttentionCall(query, key, value, **options))  # type: ignore[arg-type]


def _read(query: Tensor, state: LinearAttentionState) -> tuple[Tensor, Tensor]:
    """phi(q)^T s and phi(q)^T z for queries (B, H, n, F)."""
    s, z = state  # of different dtypes where a map of half-precision keys computes in float32
    return query.to(s.dtype) @ s, query.to(z.dtype) @ z[..., None]


def _attend(x: Features) -> Sums:
    state, reads = x.state, []
    for i in range(x.key.shape[2]):
        if x.decay is not None:
            decay = x.decay[:, :, i, None].exp()  # (B, H, 1)
            state = LinearAttentionState(decay[..., None] * state.s, decay * state.z)
        state = _add_key(state, x.key[:, :, i], x.value[:, :, i])
        if x.is_causal:
            reads.append(_read(x.query[:, :, i : i + 1], state))
    if not reads:  # non-causal, or no keys
        reads = [_read(x.query, state)]
    numerators, normalizers = zip(*reads, strict=True)
    return Sums(torch.cat(numerators, 2), torch.cat(normalizers, 2), state)


def _add_key(state: LinearAttentionState, key: Tensor, value: Tensor) -> LinearAttentionState:
    """The state with one more key (B, H, F) and value (B, H, M)."""
    update = key[..., None].to(value.dtype) * value[..., None, :]
    return LinearAttentionState(state.s + update.to(state.s.dtype), state.z + key)
