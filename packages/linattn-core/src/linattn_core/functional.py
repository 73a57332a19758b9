"""The two calls that users make: a whole sequence, and one step of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Literal, Unpack, overload

from torch import Tensor

from linattn_core import choice, operators
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.checks import kernel_feature_map, pack_results, prepare_attention, prepare_step
from linattn_core.errors import expected, near, quote
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.reference.definition import Settings
from linattn_core.registry import answers
from linattn_core.state import LinearAttentionState


class _Options(Settings, total=False):
    """The arguments of `linear_attention` that do not change the type of its result."""

    enable_gqa: bool
    backend: str


@overload
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_state: Literal[False] = ...,
    return_normalizer: Literal[False] = ...,
    **options: Unpack[_Options],
) -> Tensor: ...


@overload
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_state: Literal[True],
    return_normalizer: Literal[False] = ...,
    **options: Unpack[_Options],
) -> tuple[Tensor, LinearAttentionState]: ...


@overload
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_state: Literal[False] = ...,
    return_normalizer: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor]: ...


@overload
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    return_state: Literal[True],
    return_normalizer: Literal[True],
    **options: Unpack[_Options],
) -> tuple[Tensor, Tensor, LinearAttentionState]: ...


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    feature_map: str | FeatureMap = "elu",
    attn_mask: Tensor | None = None,
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    normalize: bool = True,
    return_normalizer: bool = False,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor | tuple[Tensor | LinearAttentionState, ...]:
    """Normalized linear attention in place of `scaled_dot_product_attention`.

        V'_i = phi(Q_i)^T S_i / (phi(Q_i)^T z_i + eps)
        S_i = sum_j phi(K_j) V_j^T,   z_i = sum_j phi(K_j)

    The sums run over all keys (equations 5 and 6 of the paper), or over j <= i when causal
    (equations 8 to 12); an `initial_state` is added to them. With `log_decay` g older keys count
    less, in the numerator and in the denominator alike:

        S_i = exp(g_i) S_{i-1} + phi(K_i) V_i^T,   z_i = exp(g_i) z_{i-1} + phi(K_i)

    Gradients follow equations 13 to 15 in linear time; between forward and
    backward only the inputs, the output and the normalizer (B, H, N) are saved.

    Args:
        query: (B, H, N, D), floating point, any strides. Under autocast, query, key and value may
            differ in dtype: all three are then cast as for `scaled_dot_product_attention`.
        key: (B, H, L, D), the same dtype and device; (B, H_kv, L, D) with `enable_gqa`.
        value: (B, H, L, M) or (B, H_kv, L, M), the same dtype and device.
        is_causal: query i sees keys 0 to i; N must equal L.
        feature_map: phi, by name or as a `FeatureMap`. By name, random maps are drawn once with
            seed 0; pass a module for another draw. A learned map must be passed as a module.
        attn_mask: bool, (B, L) or broadcastable to (B, 1, 1, L); True takes part, as for
            `scaled_dot_product_attention`. A key that takes no part does not exist: whatever it
            holds, it changes neither numerator, denominator, state nor gradients, and its decay is
            not applied. The query at such a position still gets an output.
        key_lengths: (B,) int32 or int64: keys at or past the length do not exist either. With
            `attn_mask`, a key exists only if both say so.
        cu_seqlens: (sequences + 1,) int32 or int64, from 0 to N. B must be 1: sequences are packed
            end to end along the length, and none sees another.
        initial_state: causal: the state before the first key. Non-causal: what the sums are added
            to, so that a call without keys (L = 0) reads a state. One state per sequence, of H_kv
            heads: B, or the number of packed sequences.
        return_state: also return the state after the last key (non-causal: the sums).
        log_decay: causal only; (H_kv,), one number per head, or (B, H_kv, L), one per position:
            floating point, at most 0. 0 forgets nothing, -inf forgets all earlier keys.
        enable_gqa: key and value have H_kv heads, H a multiple of it, and query head h reads
            key/value head h // (H / H_kv). States, their gradients and those of key and value
            have H_kv heads: nothing is expanded.
        normalize: False returns the numerator phi(Q_i)^T S_i alone.
        return_normalizer: also return phi(Q_i)^T z_i, without eps, so that the caller can add other
            terms (such as softmax over a window) to numerator and normalizer. It is computed as
            the sum with eps less eps, so it has the rounding of that sum: pass eps=0 where it may
            be far below eps.
        eps: added to the denominator.
        backend: "auto" for the backend that `use_backend` names, else the fastest that accepts the
            call; or a name from `backends()`.

    Returns:
        out (B, H, N, M) in the dtype of value; or a tuple of out, the normalizer (B, H, N) with
        return_normalizer, and a `LinearAttentionState` with return_state. The sums, and so the
        normalizer and the state, are float32 for half-precision inputs, else the dtype of value.

    Raises:
        ValueError: shapes, lengths or combinations that cannot be right, an unknown name, a named
            backend that refuses the call.
        TypeError: dtypes that differ or are not floating point.

    Cost per head: causal O(N (F M + C (F + M))) time with chunks of C positions (64 in torch
    operations, 16 in the CPU kernels), non-causal O((N + L) F M); O(F M) memory beyond the results.
    A mask adds O(L) to both; kernels that know lengths alone also copy key and value. A decay adds
    O(N C) time, and its gradient O(N F M / C) memory. Grouped heads divide the memory of states
    and of the gradients of key and value by H / H_kv.
    """
    if backend == "auto":
        backend = choice.current
    call = AttentionCall(
        query, key, value, is_causal, kernel_feature_map(feature_map), key_lengths, cu_seqlens,
        initial_state, return_state, eps, False, attn_mask, log_decay, normalize,
        return_normalizer,
    )  # fmt: skip
    call = prepare_attention(call, feature_map, backend, enable_gqa)
    out, state, normalizer = operators.attention(call, backend)
    if normalizer is not None:
        return pack_results(out, normalizer - call.eps, state)
    return out if state is None else (out, state)


def linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearAttentionState,
    *,
    feature_map: str | FeatureMap = "elu",
    state_indices: Tensor | None = None,
    log_decay: Tensor | None = None,
    enable_gqa: bool = False,
    normalize: bool = True,
    eps: float = 1e-6,
    backend: str = "auto",
    inplace: bool = False,
) -> tuple[Tensor, LinearAttentionState]:
    """One step of causal linear attention as an RNN (equations 18 to 20 of the paper).

        s' = d s + phi(k) v^T,   z' = d z + phi(k),   out = phi(q)^T s' / (phi(q)^T z' + eps)

    d is 1, or exp(log_decay).

    Args:
        query: (B, H, D), floating point.
        key: (B, H, D), or (B, H_kv, D) with `enable_gqa`; the same dtype and device.
        value: (B, H, M) or (B, H_kv, M), the same dtype and device.
        state: the state before this position; `LinearAttentionState.zeros` before the first.
        state_indices: (B,) int32 or int64, with inplace=True only. Row b works on slot
            state_indices[b] of `state`, which may have any number of slots as its batch; -1 is an
            empty row, whose output is 0. So a server adds and removes sequences without moving
            states.
        log_decay: (H_kv,) or (B, H_kv), at most 0.
        feature_map, enable_gqa, normalize, eps, backend: as for `linear_attention`.
        inplace: update `state` itself, for decoding; cannot be differentiated.

    Returns:
        out (B, H, M) in the dtype of value, and the new state (`state` itself if `inplace`).

    Raises:
        ValueError, TypeError: as for `linear_attention`; ValueError also for `inplace` where a
            gradient is required or numbers of the state share memory, or a slot that is out of
            range or used twice; on a GPU slots are not checked.

    Cost: O(F M) time and memory per head, however many positions came before.
    """
    if backend == "auto":
        backend = choice.current
    call = StepCall(
        query, key, value, state, kernel_feature_map(feature_map), eps, False, state_indices,
        log_decay, normalize,
    )  # fmt: skip
    call = prepare_step(call, feature_map, backend, inplace, enable_gqa)
    if not inplace:
        return operators.step(call, backend)
    return operators.step_(call, backend), state


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearAttentionState | None = None,
    *,
    feature_map: str | FeatureMap = "elu",
    backend: str = "auto",
    **options: Any,
) -> dict[str, str]:
    """Each installed backend's answer to a call: "accepts", or the reason why not.

    The arguments are those of `linear_attention`; with `state`, and (B, H, D) tensors, those of
    `linear_attention_step`. Nothing is computed but the feature map. `backend="auto"` takes the
    first backend that accepts. Every backend answers, whatever `backend` is.

    Returns:
        {name: answer}, in the order in which "auto" asks.

    Raises:
        ValueError, TypeError: as the call itself, for errors that do not depend on the backend or
            on numbers inside of tensors.
    """
    _check_options_known(linear_attention if state is None else linear_attention_step, options)
    tensors, name = (query, key, value), kernel_feature_map(feature_map)
    enable_gqa = options.pop("enable_gqa", False)
    if state is not None:
        inplace = options.pop("inplace", False)
        step = StepCall(*tensors, state, feature_map=name, **options)
        return answers(prepare_step(step, feature_map, backend, inplace, enable_gqa))
    call = AttentionCall(*tensors, feature_map=name, **options)
    return answers(prepare_attention(call, feature_map, backend, enable_gqa))


def _check_options_known(call: Callable[..., Any], options: dict[str, Any]) -> None:
    for name in options:
        known = list(inspect.signature(call).parameters)
        if name not in known:
            what = f"an argument of {call.__name__}"
            raise TypeError(expected("explain", what, quote(name), near(name, known)))
