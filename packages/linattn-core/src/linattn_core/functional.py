"""The two calls that users make: a whole sequence, and one step of it."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.autograd import forward_ad

from linattn_core import checks, operators, pointwise
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.errors import expected
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.registry import get_feature_map, shared_feature_map
from linattn_core.reference.definition import absent
from linattn_core.registry import answers
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_core.torch_private import in_forward_mode


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
    backward only the inputs, the output and the normalizer (B, H, N) are saved.

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
        Sums are computed in float32 for half-precision inputs.

    Raises:
        ValueError: shapes, lengths or combinations that cannot be right, an unknown name, a named
            backend that refuses the call.
        TypeError: dtypes that differ or are not floating point.

    Cost: O(N F (C + M)) time a head with C = 64, O(F M) memory a head beyond the results.
    """
    call = AttentionCall(
        query, key, value, is_causal, _inside(feature_map), key_lengths, cu_seqlens, initial_state,
        return_state, eps,
    )  # fmt: skip
    out, state = operators.attention(_ready(call, feature_map, backend), backend)
    return out if state is None else (out, state)


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
        inplace: update `state` itself, for decoding; cannot be differentiated.

    Returns:
        out (B, H, M) in the dtype of value, and the new state (`state` itself if `inplace`).

    Raises:
        ValueError, TypeError: as for `linear_attention`; ValueError also for `inplace` where a
            gradient is wanted.

    Cost: O(F M) time and memory a head, whatever the length before.
    """
    call = StepCall(query, key, value, state, _inside(feature_map), eps)
    call = _ready_step(call, feature_map, backend, inplace)
    if not inplace:
        return operators.step(call, backend)
    if call.requires_grad:
        raise ValueError(
            expected(
                "inplace=True",
                "a call without gradients",
                "tensors that require one",
                "pass inplace=False or call it under torch.no_grad()",
            )
        )
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
    `linear_attention_step`. Nothing is computed but the feature map. The first name that accepts
    is the one that `backend="auto"` takes; every backend answers, whatever `backend` says.

    Returns:
        {name: answer}, in the order in which "auto" asks.
    """
    tensors, name = (query, key, value), _inside(feature_map)
    if state is not None:
        inplace = options.pop("inplace", False)
        step = StepCall(*tensors, state, feature_map=name, **options)
        return answers(_ready_step(step, feature_map, backend, inplace))
    call = AttentionCall(*tensors, feature_map=name, **options)
    return answers(_ready(call, feature_map, backend))


def _ready(call: AttentionCall, feature_map: str | FeatureMap, backend: str) -> AttentionCall:
    """The call once it is known to be right, its feature map applied where kernels apply none."""
    checks.check_attention(call)
    checks.check_options(
        call.eps, backend, is_causal=call.is_causal, return_state=call.return_state
    )
    _refuse_tangents(call.query, call.key, call.value, call.initial_state)
    if not _applied_inside(feature_map):
        query, key, lengths = call.query, call.key, call.key_lengths
        key = key if lengths is None else _without_padding(key, lengths)
        query, key = _map_features(query, key, feature_map)
        call = call._replace(query=query, key=key)
    checks.check_feature_dim(call.initial_state, "initial_state", call.key.shape[-1])
    if _differentiated(call.query, call.key, call.value, call.initial_state):
        return call._replace(requires_grad=True)
    return call


def _ready_step(
    call: StepCall, feature_map: str | FeatureMap, backend: str, inplace: bool
) -> StepCall:
    """The call once it is known to be right, its feature map applied where kernels apply none."""
    checks.check_step(call)
    checks.check_options(call.eps, backend, inplace=inplace)
    _refuse_tangents(call.query, call.key, call.value, call.state)
    if not _applied_inside(feature_map):
        # Feature maps act on (B, H, N, D); a step is a sequence of one.
        query, key = _map_features(call.query[:, :, None], call.key[:, :, None], feature_map)
        call = call._replace(query=query[:, :, 0], key=key[:, :, 0])
    checks.check_feature_dim(call.state, "state", call.key.shape[-1])
    if _differentiated(call.query, call.key, call.value, call.state):
        return call._replace(requires_grad=True)
    return call


def _differentiated(
    query: Tensor, key: Tensor, value: Tensor, state: LinearAttentionState | None
) -> bool:
    return torch.is_grad_enabled() and (
        query.requires_grad
        or key.requires_grad
        or value.requires_grad
        or (state is not None and (state.s.requires_grad or state.z.requires_grad))
    )


def _inside(feature_map: Any) -> str:
    """The map that is left for kernels to apply."""
    if isinstance(feature_map, str):
        return feature_map if feature_map in pointwise.POINTWISE else "identity"
    return getattr(feature_map, "pointwise", None) or "identity"


def _applied_inside(feature_map: Any) -> bool:
    return feature_map in pointwise.POINTWISE or getattr(feature_map, "pointwise", None) is not None


def _without_padding(key: Tensor, key_lengths: Tensor) -> Tensor:
    """Zeros past the lengths, for maps that run before the operator: 0 times NaN is NaN."""
    gone = absent(key_lengths.to(key.device), key.shape[2])
    return key.masked_fill(gone, 0)


def _refuse_tangents(
    query: Tensor, key: Tensor, value: Tensor, state: LinearAttentionState | None
) -> None:
    """Forward-mode differentiation would pass through the operators as zeros."""
    if not in_forward_mode():
        return
    tensors = (query, key, value, *(state or ()))
    if any(forward_ad.unpack_dual(x).tangent is not None for x in tensors):
        raise NotImplementedError(
            expected(
                "linear attention",
                "derivatives in reverse mode only",
                "a forward-mode one (a jvp)",
                "differentiate linattn_core.reference.chunked, or use torch.autograd.grad",
            )
        )


def _map_features(
    query: Tensor, key: Tensor, feature_map: str | FeatureMap
) -> tuple[Tensor, Tensor]:
    """phi(Q) and phi(K), where kernels do not apply phi."""
    head_dim = query.shape[-1]
    if isinstance(feature_map, str):
        mapping = shared_feature_map(feature_map, head_dim)
    else:
        mapping = get_feature_map(feature_map, head_dim)
    mapped_query, mapped_key = mapping(query, key)
    _check_features(mapping, query, mapped_query, mapped_key)
    # A map may widen half precision to float32; anything else goes on in the inputs' dtype.
    wider = accumulation_dtype(query.dtype)
    dtypes = {mapped_query.dtype, mapped_key.dtype}
    if dtypes != {query.dtype} and dtypes != {wider}:
        mapped_query, mapped_key = mapped_query.to(wider), mapped_key.to(wider)
    return mapped_query, mapped_key


def _check_features(mapping: FeatureMap, query: Tensor, phi_q: Tensor, phi_k: Tensor) -> None:
    name = type(mapping).__name__
    if phi_q.shape[-1] != phi_k.shape[-1]:
        got = f"{phi_q.shape[-1]} and {phi_k.shape[-1]}"
        raise ValueError(expected(name, "one feature dim for queries and keys", got))
    shape = (*query.shape[:-1], mapping.feature_dim(query.shape[-1]))
    if tuple(phi_q.shape) != shape:
        wanted = f"{shape} from queries {tuple(query.shape)}, as its feature_dim says"
        raise ValueError(expected(name, wanted, tuple(phi_q.shape)))
