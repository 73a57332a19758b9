"""What the three forms share: phi, absent keys, groups of heads, the state, packed sequences."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, absent_keys
from linattn_core.checks import complete_attention, pack_results
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.registry import shared_feature_map
from linattn_core.state import LinearAttentionState


class Settings(TypedDict, total=False):
    """The settings of `linear_attention` that every form takes."""

    is_causal: bool
    feature_map: str | FeatureMap
    attn_mask: Tensor | None
    key_lengths: Tensor | None
    cu_seqlens: Tensor | None
    initial_state: LinearAttentionState | None
    log_decay: Tensor | None
    normalize: bool
    eps: float


class Options(Settings, total=False):
    """The settings, and what is returned beside the output."""

    return_state: bool
    return_normalizer: bool


class Features(NamedTuple):
    """One padded batch after phi; grouped key and value heads are repeated for each query head.

    Attributes:
        query: phi(Q), (B, H, N, F).
        key: phi(K), (B, H, L, F), zero where a key does not exist.
        value: V, (B, H, L, M), zero where a key does not exist.
        state: S and z before the first key.
        decay: (B, H, L), zero where a key does not exist; None without decay.
        is_causal: query i sees keys 0 to i.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    state: LinearAttentionState
    decay: Tensor | None
    is_causal: bool


class Sums(NamedTuple):
    """What a form computes from the features.

    Attributes:
        numerator: phi(q) . S, (B, H, N, M).
        normalizer: phi(q) . z without eps, (B, H, N, 1).
        state: S and z after the last key, equal in the heads of a group.
    """

    numerator: Tensor
    normalizer: Tensor
    state: LinearAttentionState


def decay_of_present(call: AttentionCall) -> Tensor:
    """The log_decay (B, H_kv, L) of a call that has one, 0 at keys that do not exist."""
    assert call.log_decay is not None, "only calls with a decay come here"
    gone = absent_keys(call.key, call.key_lengths, call.attn_mask)
    return call.log_decay if gone is None else call.log_decay.masked_fill(gone[..., 0], 0)


def run(attend: Callable[..., Sums], call: AttentionCall, **options: Any) -> Any:
    """Runs one form of the operator, packed sequences one by one."""
    alone = _whole if call.cu_seqlens is None else _one_by_one
    out, normalizer, state = alone(attend, complete_attention(call), options)
    return pack_results(
        out,
        normalizer[..., 0] if call.return_normalizer else None,
        state if call.return_state else None,
    )


def _whole(
    attend: Callable[..., Sums], call: AttentionCall, options: dict[str, Any]
) -> tuple[Tensor, Tensor, LinearAttentionState]:
    numerator, normalizer, state = attend(_features(call), **options)
    out = numerator / (normalizer + call.eps) if call.normalize else numerator
    once = LinearAttentionState(*(x[:, :: call.groups] for x in state))
    return out.to(call.value_dtype), normalizer, once


def _features(call: AttentionCall) -> Features:
    """Applies phi, sets absent keys to zero, and repeats the key heads for each query head."""
    mapping = shared_feature_map(call.feature_map, call.query.shape[-1])
    key, value, decay = call.key, call.value, call.log_decay
    gone = absent_keys(key, call.key_lengths, call.attn_mask)
    if gone is not None:
        # Not multiplied by zero: padding may hold NaN, and 0 times NaN is NaN. Before the map too,
        # whose derivative would be NaN.
        key, value = key.masked_fill(gone, 0), value.masked_fill(gone, 0)
    query, key = mapping(call.query, key)
    if gone is not None:
        key = key.masked_fill(gone, 0)
        decay = None if decay is None else decay.masked_fill(gone[..., 0], 0)
    state = _zeros(key, value) if call.initial_state is None else call.initial_state
    if call.groups > 1:
        key, value = (x.repeat_interleave(call.groups, 1) for x in (key, value))
        state = LinearAttentionState(*(x.repeat_interleave(call.groups, 1) for x in state))
        decay = None if decay is None else decay.repeat_interleave(call.groups, 1)
    return Features(query, key, value, state, decay, call.is_causal)


def _zeros(key: Tensor, value: Tensor) -> LinearAttentionState:
    batch, heads, _, feature_dim = key.shape
    return LinearAttentionState(
        value.new_zeros(batch, heads, feature_dim, value.shape[-1]),
        key.new_zeros(batch, heads, feature_dim),
    )


def _one_by_one(
    attend: Callable[..., Sums], call: AttentionCall, options: dict[str, Any]
) -> tuple[Tensor, Tensor, LinearAttentionState]:
    """Computes each packed sequence alone and packs the results again."""
    assert call.cu_seqlens is not None, "only packed sequences are taken one by one"
    bounds = call.cu_seqlens.tolist()
    if len(bounds) == 1:  # no sequence
        out, normalizer, state = _whole(attend, _as_one_sequence(call), options)
        return out, normalizer, LinearAttentionState(*(x[:0] for x in state))
    parts = [
        _whole(attend, _sequence(call, i, slice(*window)), options)
        for i, window in enumerate(pairwise(bounds))
    ]
    outputs, normalizers, states = zip(*parts, strict=True)
    return torch.cat(outputs, 2), torch.cat(normalizers, 2), LinearAttentionState.cat(states)


def _as_one_sequence(call: AttentionCall) -> AttentionCall:
    """The same tensors as one sequence without a state."""
    return call._replace(cu_seqlens=None, initial_state=None)


def _sequence(call: AttentionCall, number: int, window: slice) -> AttentionCall:
    """One of the packed sequences as a call of its own."""
    state, mask, decay = call.initial_state, call.attn_mask, call.log_decay
    return call._replace(
        query=call.query[:, :, window],
        key=call.key[:, :, window],
        value=call.value[:, :, window],
        cu_seqlens=None,
        attn_mask=None if mask is None else mask[:, window],
        log_decay=None if decay is None else decay[:, :, window],
        initial_state=None if state is None else state.split(1)[number],
    )
