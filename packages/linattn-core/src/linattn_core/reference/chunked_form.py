"""Chunks: quadratic inside a chunk, the state between chunks. The textbook form, differentiable."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from linattn_core.reference.definition import Result, features, run
from linattn_core.state import LinearAttentionState


def chunked(
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
    chunk_size: int = 64,
) -> Tensor | Result:
    """Linear attention by chunks of `chunk_size` positions.

    Within a chunk the weights are a small lower-triangular matrix; what came before the chunk is
    read from S and z. Arguments, shapes and results are those of `linear_attention`; everything
    is computed in the inputs' dtype by ordinary differentiable operations, as often as wanted.

    Cost: O(N (C + M) F) time, O(N F M / C) memory a head for chunks of C.
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
        chunk_size=chunk_size,
    )


def _into_chunks(x: Tensor, size: int) -> Tensor:
    """(B, H, N, D) -> (B, H, chunks, size, D), zeros behind the end."""
    batch, heads, length, dim = x.shape
    padded = pad(x, (0, 0, 0, -length % size))
    return padded.reshape(batch, heads, -(-length // size), size, dim)


def _before(local: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    """Sums before each chunk, and after the last, from each chunk's own sum (dimension 2)."""
    running = torch.cat((start.unsqueeze(2), local), 2).cumsum(2)
    return running[:, :, :-1], running[:, :, -1]


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool,
    feature_map: Any,
    eps: float,
    chunk_size: int,
    initial_state: LinearAttentionState | None,
    key_lengths: Tensor | None,
) -> Result:
    q, k, v, (s, z) = features(query, key, value, feature_map, key_lengths, initial_state)
    length = q.shape[2]
    k, v = _into_chunks(k, chunk_size), _into_chunks(v, chunk_size)
    s_before, s = _before((k.mT.to(v.dtype) @ v).to(s.dtype), s)  # (B, H, chunks, F, M)
    z_before, z = _before(k.sum(-2).to(z.dtype), z)  # (B, H, chunks, F)
    state = LinearAttentionState(s, z)
    if not is_causal:
        q = q.to(s.dtype)
        return (q @ s / (q @ z[..., None] + eps)).to(value.dtype), state
    q = _into_chunks(q, chunk_size)
    weights = (q @ k.mT).tril()  # (B, H, chunks, C, C)
    numerator = weights.to(v.dtype) @ v + q.to(s.dtype) @ s_before
    normalizer = weights.sum(-1, keepdim=True) + q.to(z.dtype) @ z_before[..., None] + eps
    out = (numerator / normalizer).flatten(2, 3)[:, :, :length]
    return out.to(value.dtype), state
