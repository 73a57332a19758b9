"""The state of a sequence alone: the sums over its keys, without outputs of queries."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from linattn_core import choice, operators
from linattn_core.calls import AttentionCall, absent_keys
from linattn_core.checks import (
    check_keys,
    kernel_feature_map,
    needs_gradients,
    position_decay,
    prepare_attention,
)
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.reference.decay import exp_without_subnormals, from_here
from linattn_core.state import LinearAttentionState, accumulation_dtype, decay_state
from linattn_core.values import check_attention_values


def linear_attention_state(
    key: Tensor,
    value: Tensor,
    *,
    feature_map: str | FeatureMap = "elu",
    key_lengths: Tensor | None = None,
    attn_mask: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    log_decay: Tensor | None = None,
    initial_state: LinearAttentionState | None = None,
    backend: str = "auto",
) -> LinearAttentionState:
    """The state that `linear_attention(..., return_state=True)` returns, without the outputs.

        S = sum_j phi(K_j) V_j^T,   z = sum_j phi(K_j)

    These are equations 10 and 11 of the paper at the last position. With `log_decay` g, key j is
    multiplied by exp(g_{j+1} + ... + g_L), and the initial state by exp(g_1 + ... + g_L). The
    result can be differentiated by every tensor.

    Args:
        key: (B, H, L, D), floating point.
        value: (B, H, L, M), the same dtype and device.
        feature_map, key_lengths, attn_mask, cu_seqlens: as for `linear_attention`.
        log_decay: (H,) or (B, H, L), floating point, at most 0.
        initial_state: the state before the first key, one per sequence.
        backend: as for `linear_attention`.

    Returns:
        One state per sequence: S (B, H, F, M) and z (B, H, F), float32 for half-precision inputs,
        else the dtype of value. With `cu_seqlens`, B is the number of packed sequences.

    Raises:
        ValueError, TypeError: as `linear_attention`.

    Cost per head: O(L F M) time, half of non-causal attention, and O(F M) memory. A decay adds a
    copy of the values. Packed sequences take the time and memory of non-causal attention.
    """
    if backend == "auto":
        backend = choice.current
    key, value = check_keys(key, value)
    call = AttentionCall(
        _placeholder(key, cu_seqlens), key, value, False, kernel_feature_map(feature_map),
        key_lengths, cu_seqlens, initial_state, True, attn_mask=attn_mask,
    )  # fmt: skip
    call = prepare_attention(call, feature_map, backend, enable_gqa=False)
    if log_decay is not None:
        call = call._replace(log_decay=position_decay(log_decay, call))
        check_attention_values(call)
    return sum_keys(call, backend)


def sum_keys(call: AttentionCall, backend: str) -> LinearAttentionState:
    """The state after the last key of a checked call; its queries are not read."""
    initial, keys, decay = call.initial_state, call, None
    if call.log_decay is not None:
        keys, decay = _weigh_values(call, call.log_decay)
    keys = keys._replace(
        query=_placeholder(keys.key, call.cu_seqlens), is_causal=False, initial_state=None,
        log_decay=None, return_state=True, return_normalizer=False,
    )  # fmt: skip
    keys = keys._replace(requires_grad=torch.is_grad_enabled() and needs_gradients(keys, None))
    _, state, _ = operators.attention(keys, backend)
    assert state is not None, "return_state was set"
    if decay is not None:  # the weights are the last column of the values
        state = LinearAttentionState(state.s[..., :-1], state.s[..., -1])
    if initial is None:
        return state
    if decay is not None:
        initial = decay_state(initial, decay)
    return LinearAttentionState(*map(torch.add, state, initial))


def _placeholder(key: Tensor, cu_seqlens: Tensor | None) -> Tensor:
    """Queries for a call that only sums keys: none, or one for each key of packed sequences."""
    return key[:, :, :0].detach() if cu_seqlens is None else key.detach()


def _weigh_values(call: AttentionCall, log_decay: Tensor) -> tuple[AttentionCall, Tensor]:
    """The call with values (w V, w), w the decay up to the end; and the decay over all keys."""
    value = call.value.to(accumulation_dtype(call.value_dtype))
    gone = absent_keys(call.key, call.key_lengths, call.attn_mask)
    if gone is not None:  # NaN in padding would reach the gradient of the decay
        value, log_decay = value.masked_fill(gone, 0), log_decay.masked_fill(gone[..., 0], 0)
    if call.cu_seqlens is None:
        later, whole = _sum_later(log_decay), log_decay.sum(-1)
    else:
        later, whole = _sum_later_packed(log_decay, call.cu_seqlens.to(value.device))
    weights = exp_without_subnormals(later)[..., None]
    value = torch.cat([value * weights, weights], -1)
    return call._replace(key=call.key.to(value.dtype), value=value), whole.exp()


def _sum_later(g: Tensor) -> Tensor:
    """(B, H, L) -> (B, H, L): at j, the sum of g_m over m > j; g may be -inf."""
    return from_here(pad(g[..., 1:], (0, 1))) if g.shape[-1] else g


def _sum_later_packed(g: Tensor, cu_seqlens: Tensor) -> tuple[Tensor, Tensor]:
    """The same within each packed sequence, and the sum over each, (sequences, H)."""
    length, (starts, ends) = g.shape[-1], (cu_seqlens[:-1], cu_seqlens[1:])
    if not length:
        return g, g.new_zeros(starts.shape[0], g.shape[1])
    positions = torch.arange(length, device=g.device)
    end = ends[torch.searchsorted(ends, positions, right=True)]
    later, step = _shift(g, positions, end, 1), 1
    while step < length:
        later, step = later + _shift(later, positions, end, step), 2 * step
    first = (later + g)[0].index_select(1, starts.clamp(max=length - 1)).mT
    return later, first.masked_fill((starts == ends)[:, None], 0)


def _shift(x: Tensor, positions: Tensor, end: Tensor, step: int) -> Tensor:
    """x at `step` positions later, 0 where the sequence has ended."""
    return x.roll(-step, -1).masked_fill(positions + step >= end, 0)
