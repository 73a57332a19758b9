"""The two calls that users make: a whole sequence, and one step of it."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from linattn_core import checks, operators, pointwise
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.registry import get_feature_map, shared_feature_map
from linattn_core.reference.definition import absent
from linattn_core.registry import AttentionCall, StepCall, answers
from linattn_core.state import LinearAttentionState, accumulation_dtype


@overload
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = ...,
    feature_map: str | FeatureMap = ...,
    key_lengths: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    initial_state: LinearAttentionState | None = ...,
    return_state: Literal[False] = ...,
    eps: float = ...,
    backend: str = ...,
) -> Tensor: ...


@overload
def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = ...,
    feature_map: str | FeatureMap = ...,
    key_lengths: Tensor | None = ...,
    cu_seqlens: Tensor | None = ...,
    initial_state: LinearAttentionState | None = ...,
    return_state: Literal[True],
    eps: float = ...,
    backend: str = ...,
) -> tuple[Tensor, LinearAttentionState]: ...


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    is_causal: bool = False,
    feature_map: str | FeatureMap = "elu",
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
    eps: float = 1e-6,
    backend: str = "auto",
) -> Tensor | tuple[Tensor, LinearAttentionState]:
    """Normalized linear attention in place of `scaled_dot_product_attention`.

        V'_i = phi(Q_i)^T S_i / (phi(Q_i)^T z_i + eps)
        S_i = sum_j phi(K_j) V_j^T,   z_i = sum_j phi(K_j)

    the sums over all keys (equations 5 and 6 of the paper), or over j <= i when causal
    (equations 8 to 12). Gradients follow equations 13 to 15 in linear time; between forward and
    backward only the inputs, the output and the normalizer (B, H, N) are kept.

    Args:
        query: (B, H, N, D), floating point, any strides.
        key: (B, H, L, D), the same dtype and device.
        value: (B, H, L, M), the same dtype and device.
        is_causal: query i sees keys 0 to i; N must equal L.
        feature_map: phi, by name or as a `FeatureMap`. By name, random maps are drawn once with
            seed 0 and learned ones are untrained; pass a module to choose or train them.
        key_lengths: (B,) int32 or int64. Keys at or past the length do not exist: they are in
            neither numerator, denominator, state nor gradient, whatever they hold.
        cu_seqlens: (sequences + 1,) int32 or int64, from 0 to N. B must be 1: sequences lie end
            to end along the length and none sees another.
        initial_state: what came before, causal only; (sequences, ...) when packed.
        return_state: also return the state after the last key (non-causal: the sums).
        eps: added to the denominator.
        backend: "auto" for the fastest that accepts the call, or a name from `backends()`.

    Returns:
        (B, H, N, M) in the dtype of value; with return_state, that and a `LinearAttentionState`.
        Sums are kept in float32 for half-precision inputs.

    Raises:
        ValueError: shapes, lengths or combinations that cannot be right, an unknown name, a named
            backend that refuses the call.
        TypeError: dtypes that differ or are not floating point.

    Cost: O(N F (C + M)) time a head with C = 64, O(F M) memory a head beyond the results.
    """
    checks.check_attention(query, key, value, is_causal, key_lengths, cu_seqlens, initial_state)
    checks.check_how(eps, backend, is_causal=is_causal, return_state=return_state)
    _refuse_tangents(query, key, value, *(initial_state or ()))
    requires_grad = _differentiated(query, key, value, *(initial_state or ()))
    if key_lengths is not None and _pointwise_name(feature_map) is None:
        key = _without_padding(key, key_lengths)
    query, key, phi = _map_features(query, key, feature_map)
    checks.check_feature_dim(initial_state, "initial_state", key.shape[-1])
    s, z = (None, None) if initial_state is None else initial_state
    out, last_s, last_z, _ = operators.attention(
        query, key, value, key_lengths, cu_seqlens, s, z,
        is_causal, return_state, phi, eps, backend, requires_grad,
    )  # fmt: skip
    return (out, LinearAttentionState(last_s, last_z)) if return_state else out


def linear_attention_step(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearAttentionState,
    *,
    feature_map: str | FeatureMap = "elu",
    eps: float = 1e-6,
    backend: str = "auto",
    inplace: bool = False,
) -> tuple[Tensor, LinearAttentionState]:
    """One step of causal linear attention as an RNN (equations 18 to 20 of the paper).

        s' = s + phi(k) v^T,   z' = z + phi(k),   out = phi(q)^T s' / (phi(q)^T z' + eps)

    Args:
        query, key: (B, H, D), floating point.
        value: (B, H, M), the same dtype and device.
        state: what came before; `LinearAttentionState.zeros` at the start.
        feature_map, eps, backend: as for `linear_attention`.
        inplace: update the given state, for decoding; cannot be differentiated.

    Returns:
        out (B, H, M) in the dtype of value, and the new state (the given one if `inplace`).

    Raises:
        ValueError, TypeError: as for `linear_attention`; ValueError also for `inplace` where a
            gradient is wanted.

    Cost: O(F M) time and memory a head, whatever the length before.
    """
    checks.check_step(query, key, value, state)
    checks.check_how(eps, backend, inplace=inplace)
    _refuse_tangents(query, key, value, *state)
    requires_grad = _differentiated(query, key, value, *state)
    if inplace and requires_grad:
        raise ValueError(
            "inplace=True was asked for where a gradient is wanted; pass inplace=False or call it "
            "under torch.no_grad()."
        )
    phi = _pointwise_name(feature_map)
    if phi is None:
        # Feature maps act on (B, H, N, D); a step is a sequence of one.
        q, k, phi = _map_features(query[:, :, None], key[:, :, None], feature_map)
        query, key = q[:, :, 0], k[:, :, 0]
    checks.check_feature_dim(state, "state", key.shape[-1])
    if inplace:
        return operators.step_(query, key, value, *state, phi, eps, backend), state
    out, s, z = operators.step(query, key, value, *state, phi, eps, backend, requires_grad)
    return out, LinearAttentionState(s, z)


def explain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: LinearAttentionState | None = None,
    *,
    is_causal: bool = False,
    feature_map: str | FeatureMap = "elu",
    key_lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    initial_state: LinearAttentionState | None = None,
    return_state: bool = False,
) -> dict[str, str]:
    """Each installed backend's answer to a call: "accepts", or the reason why not.

    The arguments are those of `linear_attention`; with `state`, and (B, H, D) tensors, those of
    `linear_attention_step`. Nothing is computed but the feature map. The first name that accepts
    is the one that `backend="auto"` takes.

    Returns:
        {name: answer}, in the order in which "auto" asks.
    """
    if state is not None:
        checks.check_step(query, key, value, state)
        wanted = _differentiated(query, key, value, *state)
        q, _, phi = _map_features(query[:, :, None], key[:, :, None], feature_map)
        return answers(StepCall.of(q[:, :, 0], value, phi, wanted))
    checks.check_attention(query, key, value, is_causal, key_lengths, cu_seqlens, initial_state)
    wanted = _differentiated(query, key, value, *(initial_state or ()))
    query, key, phi = _map_features(query, key, feature_map)
    call = AttentionCall.of(
        query,
        key,
        value,
        phi,
        is_causal=is_causal,
        padded=key_lengths is not None,
        packed=cu_seqlens is not None,
        initial_state=initial_state is not None,
        return_state=return_state,
        requires_grad=wanted,
    )
    return answers(call)


def _differentiated(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(x.requires_grad for x in tensors)


def _pointwise_name(feature_map: Any) -> str | None:
    """The kernel-side name of a map, None if it must be applied before the operator."""
    if isinstance(feature_map, str):
        return feature_map if feature_map in pointwise.POINTWISE else None
    return getattr(feature_map, "pointwise", None)


def _without_padding(key: Tensor, key_lengths: Tensor) -> Tensor:
    """Zeros past the lengths, for maps that run before the operator: 0 times NaN is NaN."""
    gone = absent(key_lengths.to(key.device), key.shape[2])
    return key.masked_fill(gone, 0)


def _check_features(mapping: FeatureMap, mapped: Tensor, query: Tensor) -> None:
    expected = (*query.shape[:-1], mapping.feature_dim(query.shape[-1]))
    if tuple(mapped.shape) != expected:
        raise ValueError(
            f"{type(mapping).__name__} was expected to map queries {tuple(query.shape)} to "
            f"{expected}, as its feature_dim says, and gave {tuple(mapped.shape)}."
        )


def _refuse_tangents(*tensors: Tensor) -> None:
    """Forward-mode differentiation would pass through the operators as zeros."""
    if forward_ad._current_level < 0:
        return
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            "linear attention was asked for a forward-mode derivative (a jvp) and has reverse mode "
            "only; differentiate linattn_core.reference.chunked, or use torch.autograd.grad."
        )


def _map_features(
    query: Tensor, key: Tensor, feature_map: str | FeatureMap
) -> tuple[Tensor, Tensor, str]:
    """Queries, keys and the map that is left for the operator to apply to them."""
    name = _pointwise_name(feature_map)
    if name is not None:
        return query, key, name
    head_dim = query.shape[-1]
    if isinstance(feature_map, str):
        mapping = shared_feature_map(feature_map, head_dim)
    else:
        mapping = get_feature_map(feature_map, head_dim)
    mapped_query, mapped_key = mapping(query, key)
    if mapped_query.shape[-1] != mapped_key.shape[-1]:
        raise ValueError(
            f"{type(mapping).__name__} was expected to give queries and keys one feature dim and "
            f"gave {mapped_query.shape[-1]} and {mapped_key.shape[-1]}."
        )
    _check_features(mapping, mapped_query, query)
    # A map may widen half precision to float32; anything else goes on in the inputs' dtype.
    kept = (query.dtype, accumulation_dtype(query.dtype))
    if mapped_query.dtype not in kept or mapped_key.dtype != mapped_query.dtype:
        mapped_query, mapped_key = mapped_query.to(kept[1]), mapped_key.to(kept[1])
    return mapped_query, mapped_key, "identity"
