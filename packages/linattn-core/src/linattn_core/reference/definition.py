"""What the three references share: phi, absent keys, the starting state, packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.feature_maps.registry import get_feature_map
from linattn_core.state import LinearAttentionState

Result = tuple[Tensor, LinearAttentionState]


class Features(NamedTuple):
    """One padded batch, ready for the sums.

    Attributes:
        query: phi(Q), (B, H, N, F).
        key: phi(K), (B, H, L, F), zero where a key does not exist.
        value: V, (B, H, L, M), zero where a key does not exist.
        state: S and z before the first key.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    state: LinearAttentionState


def absent(key_lengths: Tensor, length: int) -> Tensor:
    """(B, 1, L, 1) bool, true at keys at or past each sequence's length."""
    positions = torch.arange(length, device=key_lengths.device)
    return (positions >= key_lengths[:, None])[:, None, :, None]


def features(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: Any,
    key_lengths: Tensor | None,
    initial_state: LinearAttentionState | None,
) -> Features:
    """Applies phi and takes the absent keys out."""
    mapping = get_feature_map(feature_map, query.shape[-1])
    query, key = mapping(query, key)
    if key_lengths is not None:
        # Filled, not multiplied by zero: padding may hold NaN.
        gone = absent(key_lengths.to(key.device), key.shape[2])
        key, value = key.masked_fill(gone, 0), value.masked_fill(gone, 0)
    if initial_state is None:
        batch, heads, _, feature_dim = key.shape
        initial_state = LinearAttentionState(
            value.new_zeros(batch, heads, feature_dim, value.shape[-1]),
            key.new_zeros(batch, heads, feature_dim),
        )
    return Features(query, key, value, initial_state)


def run(
    attend: Callable[..., Result],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    cu_seqlens: Tensor | None,
    key_lengths: Tensor | None,
    initial_state: LinearAttentionState | None,
    return_state: bool,
    **options: Any,
) -> Tensor | Result:
    """Runs one form of the operator, packed sequences one by one."""
    if cu_seqlens is None:
        out, state = attend(
            query, key, value, key_lengths=key_lengths, initial_state=initial_state, **options
        )
    else:
        out, state = _one_by_one(attend, (query, key, value), cu_seqlens, initial_state, options)
    return (out, state) if return_state else out


def _one_by_one(
    attend: Callable[..., Result],
    packed: tuple[Tensor, Tensor, Tensor],
    cu_seqlens: Tensor,
    initial_state: LinearAttentionState | None,
    options: dict[str, Any],
) -> Result:
    """Each packed sequence alone, the results packed again."""
    bounds = cu_seqlens.tolist()
    outputs, states = [], []
    for i, (start, stop) in enumerate(pairwise(bounds)):
        before = None
        if initial_state is not None:
            before = LinearAttentionState(*(x[i : i + 1] for x in initial_state))
        sequence = (x[:, :, start:stop] for x in packed)
        out, state = attend(*sequence, key_lengths=None, initial_state=before, **options)
        outputs.append(out)
        states.append(state)
    return torch.cat(outputs, 2), LinearAttentionState.cat(states)
