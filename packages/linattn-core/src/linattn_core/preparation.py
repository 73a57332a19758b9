"""A call as the operator takes it: checked, and with its feature map applied unless kernels do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core import checks, pointwise
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.errors import expected, quote
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.registry import shared_feature_map
from linattn_core.reference.definition import absent_keys
from linattn_core.state import LinearAttentionState, accumulation_dtype


def kernel_feature_map(feature_map: Any) -> str:
    """The name of the map that the kernels apply: "identity" where it runs before the operator."""
    if isinstance(feature_map, str):
        return feature_map if feature_map in pointwise.POINTWISE else "identity"
    if not isinstance(feature_map, FeatureMap):
        return "identity"  # `shared_feature_map` refuses it, after the checks
    name = feature_map.pointwise
    if name is not None and name not in pointwise.POINTWISE:
        what, wanted = f"{type(feature_map).__name__}.pointwise", ", ".join(pointwise.POINTWISE)
        raise ValueError(expected(what, f"None or one of {wanted}", quote(name)))
    return name or "identity"


def prepare_attention(
    call: AttentionCall, feature_map: str | FeatureMap, backend: str, enable_gqa: bool
) -> AttentionCall:
    """The checked call; its feature map is applied if the kernels do not apply it themselves."""
    call = checks.check_attention(call, backend, enable_gqa=enable_gqa)
    if call.feature_map == "identity" and not _is_applied_inside(feature_map):
        _check_bare_sums(call, feature_map)
        query, key = _map_features(call.query, _erase_padding(call), feature_map)
        call = call._replace(query=query, key=key)
    if call.initial_state is not None:
        checks.check_feature_dim(call.initial_state, "initial_state", call.key.shape[-1])
    if torch.is_grad_enabled() and needs_gradients(call, call.initial_state):
        return call._replace(requires_grad=True)
    return call


def prepare_step(
    call: StepCall,
    feature_map: str | FeatureMap,
    backend: str,
    inplace: bool,
    enable_gqa: bool,
) -> StepCall:
    """The checked call; its feature map is applied if the kernels do not apply it themselves."""
    call = checks.check_step(call, backend, enable_gqa=enable_gqa, inplace=inplace)
    if call.feature_map == "identity" and not _is_applied_inside(feature_map):
        # Feature maps act on (B, H, N, D); a step is a sequence of one.
        query, key = _map_features(call.query[:, :, None], call.key[:, :, None], feature_map)
        call = call._replace(query=query[:, :, 0], key=key[:, :, 0])
    if call.state.z.shape[-1] != call.key.shape[-1]:
        checks.check_feature_dim(call.state, "state", call.key.shape[-1])
    if not (torch.is_grad_enabled() and needs_gradients(call, call.state)):
        return call
    if inplace:
        wanted, got = "a call without gradients", "tensors that require one"
        advice = "pass inplace=False or call it under torch.no_grad()"
        raise ValueError(expected("inplace=True", wanted, got, advice))
    return call._replace(requires_grad=True)


def needs_gradients(call: AttentionCall | StepCall, state: LinearAttentionState | None) -> bool:
    """Whether autograd will differentiate the call where gradients are enabled."""
    return bool(
        call.query.requires_grad
        or call.key.requires_grad
        or call.value.requires_grad
        or (state is not None and (state.s.requires_grad or state.z.requires_grad))
        or (call.log_decay is not None and call.log_decay.requires_grad)
    )


def _is_applied_inside(feature_map: Any) -> bool:
    """Whether kernels apply the map themselves."""
    # The type first: an array of one name equals the name.
    if isinstance(feature_map, str):
        return feature_map in pointwise.POINTWISE
    return isinstance(feature_map, FeatureMap) and feature_map.pointwise is not None


def _erase_padding(call: AttentionCall) -> Tensor:
    """The keys, 0 where absent, for maps that run before the operator: padding may hold NaN."""
    gone = absent_keys(call.key, call.key_lengths, call.attn_mask)
    return call.key if gone is None else call.key.masked_fill(gone, 0)


def _map_features(
    query: Tensor, key: Tensor, feature_map: str | FeatureMap
) -> tuple[Tensor, Tensor]:
    """phi(Q) and phi(K), for a map that the kernels do not apply."""
    mapping = shared_feature_map(feature_map, query.shape[-1])
    mapped_query, mapped_key = mapping(query, key)
    _check_features(mapping, "queries", query, mapped_query)
    _check_features(mapping, "keys", key, mapped_key)
    # A map may return the inputs' dtype or that of the sums; any other is cast to that of the sums.
    wider = accumulation_dtype(query.dtype)
    dtypes = {mapped_query.dtype, mapped_key.dtype}
    if dtypes != {query.dtype} and dtypes != {wider}:
        mapped_query, mapped_key = mapped_query.to(wider), mapped_key.to(wider)
    return mapped_query, mapped_key


def _check_bare_sums(call: AttentionCall, feature_map: str | FeatureMap) -> None:
    """Refuses numerators and normalizers that are not divided, if the map needs the division."""
    if call.normalize and not call.return_normalizer:
        return
    mapping = shared_feature_map(feature_map, call.query.shape[-1])
    if mapping.scales_queries:
        what = "normalize=False" if not call.normalize else "return_normalizer=True"
        wanted = "a feature map whose queries share one scale"
        advice = "choose another map, or divide by the normalizer"
        raise ValueError(expected(what, wanted, type(mapping).__name__, advice))


def _check_features(mapping: FeatureMap, what: str, x: Tensor, phi: Tensor) -> None:
    """Refuses features that kernels, which trust their callers, would read outside of."""
    name = f"{type(mapping).__name__}.{what}"
    if not isinstance(phi, Tensor):
        raise TypeError(expected(name, "a tensor", f"a value of type {type(phi).__name__}"))
    if phi.layout is not torch.strided or phi.is_nested:
        got = "a nested tensor" if phi.is_nested else f"the layout {phi.layout}"
        raise TypeError(expected(name, "a dense tensor", got))
    if phi.is_complex():
        advice = "return real and imaginary parts as features of their own"
        raise TypeError(expected(name, "real features", phi.dtype, advice))
    shape = (*x.shape[:-1], mapping.feature_dim(x.shape[-1]))
    if tuple(phi.shape) != shape:
        wanted = f"{shape} from {what} {tuple(x.shape)}, as its feature_dim says"
        raise ValueError(expected(name, wanted, tuple(phi.shape)))
    if phi.device != x.device:
        raise ValueError(expected(name, f"features on {x.device}", phi.device))
