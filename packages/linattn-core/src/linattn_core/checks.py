"""What a call must satisfy, checked once, here: behind the operators nothing is checked again.

The result is the call as the operator takes it: arguments that may have several shapes in the one
that the record holds, and the feature map applied unless kernels apply it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor

from linattn_core import pointwise
from linattn_core.autocast import autocast_dtype
from linattn_core.calls import AttentionCall, StepCall, absent_keys
from linattn_core.errors import expected, quote
from linattn_core.feature_maps.base import FeatureMap
from linattn_core.feature_maps.registry import shared_feature_map
from linattn_core.state import FLOATS, SUMS, LinearAttentionState, accumulation_dtype

_SEQUENCES = "(batch, heads, length, dim)"


def check_attention(call: AttentionCall, backend: str, *, enable_gqa: bool) -> AttentionCall:
    """The call after all checks, with its arguments in the shapes that an `AttentionCall` holds.

    One expression accepts a plain call, because checks are a noticeable share of a short one. The
    numbers inside tensors are checked by the operator (`values`).
    """
    try:
        if _is_plain(call, backend, enable_gqa):
            return call
    except (AttributeError, TypeError):
        pass  # an argument is of another type; the checks below name it
    query, key, value = in_one_dtype(call.query, call.key, call.value)
    call = call._replace(query=query, key=key, value=value)
    _check_tensors(_SEQUENCES, 4, query=query, key=key, value=value)
    for name, other in (("key", key), ("value", value)):
        _check_equal("batch size", "query", query.shape[0], name, other.shape[0])
    check_heads(query, key, value, enable_gqa=enable_gqa)
    _check_equal("dim", "query", query.shape[3], "key", key.shape[3])
    _check_equal("length", "key", key.shape[2], "value", value.shape[2])
    _check_causal(call)
    if call.key_lengths is not None:
        _check_int_vector("key_lengths", call.key_lengths, call.device)
        batch = call.key_lengths.shape[0]
        _check_equal("batch size", "key", key.shape[0], "key_lengths", batch)
    if call.cu_seqlens is not None:
        _check_packing(call, call.cu_seqlens)
    if call.initial_state is not None:
        check_state(call.initial_state, "initial_state", call.num_sequences, value)
    check_options(
        call.eps, backend, is_causal=call.is_causal, return_state=call.return_state,
        enable_gqa=enable_gqa, normalize=call.normalize, return_normalizer=call.return_normalizer,
    )  # fmt: skip
    return complete_attention(call)


def check_keys(key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Checks key and value where there is no query, which `check_attention` would name."""
    _, key, value = in_one_dtype(key, key, value)
    _check_tensors(_SEQUENCES, 4, key=key, value=value)
    _check_equal("batch size", "key", key.shape[0], "value", value.shape[0])
    return key, value


def _is_plain(call: AttentionCall, backend: str, enable_gqa: bool) -> bool:
    """True only for three tensors without further arguments that `check_attention` accepts."""
    query, key, value, is_causal = call[:4]
    q, k, v = query.shape, key.shape, value.shape
    return (
        len(q) == len(k) == len(v) == 4
        and q[0] == k[0] == v[0]
        and k[1] == v[1]
        and (q[1] == k[1] or (enable_gqa is True and 0 < k[1] <= q[1] and q[1] % k[1] == 0))
        and q[3] == k[3]
        and k[2] == v[2]
        and (is_causal is False or (is_causal is True and q[2] == k[2]))
        and query.dtype == key.dtype == value.dtype
        and query.dtype in FLOATS
        and query.device == key.device == value.device
        and query.layout is key.layout is value.layout is torch.strided
        and call.key_lengths is None
        and call.cu_seqlens is None
        and call.initial_state is None
        and call.return_state is False
        and call.attn_mask is None
        and call.log_decay is None
        and call.normalize is True
        and call.return_normalizer is False
        and isinstance(enable_gqa, bool)
        and isinstance(call.eps, float)
        and 0 <= call.eps < math.inf
        and isinstance(backend, str)
    )


def _check_causal(call: AttentionCall) -> None:
    if call.is_causal and call.query_length != call.key_length:
        raise ValueError(
            expected(
                "is_causal=True",
                "as many queries as keys",
                f"{call.query_length} queries and {call.key_length} keys",
                "continue a sequence with initial_state instead",
            )
        )


def _check_packing(call: AttentionCall, cu_seqlens: Tensor) -> None:
    _check_int_vector("cu_seqlens", cu_seqlens, call.device)
    if call.key_lengths is not None:
        raise ValueError(
            expected(
                "lengths",
                "either cu_seqlens or key_lengths",
                "both",
                "pass cu_seqlens for packed sequences or key_lengths for padded ones",
            )
        )
    if call.batch != 1:
        raise ValueError(
            expected(
                "cu_seqlens",
                "batch size 1",
                call.batch,
                "pack the sequences end to end along the length",
            )
        )
    if cu_seqlens.shape[0] < 1:
        raise ValueError(expected("cu_seqlens", "at least one number, 0", "an empty tensor"))
    _check_equal("length when packed", "query", call.query_length, "key", call.key_length)


def check_step(call: StepCall, backend: str, *, enable_gqa: bool, inplace: bool) -> StepCall:
    """The same for `linear_attention_step`; decoding calls it thousands of times per second."""
    query, key, value, state = call[:4]
    try:
        if _is_plain_step(call, backend, enable_gqa, inplace):
            return call if call.log_decay is None and call.normalize else complete_step(call)
    except (AttributeError, TypeError):
        pass  # an argument is of another type; the checks below name it
    query, key, value = in_one_dtype(query, key, value)
    _check_tensors("(batch, heads, dim)", 3, query=query, key=key, value=value)
    _check_step_shapes(query, key, value, enable_gqa=enable_gqa)
    if call.state_indices is not None:
        check_slots(call, call.state_indices, inplace=inplace)
    check_state(state, "state", query.shape[0] if call.state_indices is None else None, value)
    check_options(
        call.eps, backend, inplace=inplace, enable_gqa=enable_gqa, normalize=call.normalize
    )
    return complete_step(call._replace(query=query, key=key, value=value))


def _check_step_shapes(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> None:
    if not enable_gqa and query.shape != key.shape:
        wanted, got = "one shape (batch, heads, dim)", f"{_shape(query)} and {_shape(key)}"
        raise ValueError(expected("query and key", wanted, got))
    _check_equal("batch size", "query", query.shape[0], "key", key.shape[0])
    _check_equal("dim", "query", query.shape[2], "key", key.shape[2])
    if value.shape[:2] != key.shape[:2]:
        wanted = f"batch and heads {_shape(key)[:2]} like key"
        raise ValueError(expected("value", wanted, f"shape {_shape(value)}"))
    check_heads(query, key, value, enable_gqa=enable_gqa)


def _is_plain_step(call: StepCall, backend: str, enable_gqa: bool, inplace: bool) -> bool:
    """True only for tensors that `check_step` accepts, with no slots; a decay is not looked at."""
    query, key, value, state = call[:4]
    if not isinstance(state, LinearAttentionState):
        return False
    s, z = state
    q, k, v = query.shape, key.shape, value.shape
    return (
        len(q) == len(k) == len(v) == len(z.shape) == 3
        and q[::2] == k[::2]
        and (q[1] == k[1] or (enable_gqa is True and 0 < k[1] <= q[1] and q[1] % k[1] == 0))
        and v[:2] == k[:2] == z.shape[:2]
        and s.shape == (*z.shape, *v[2:])
        and query.dtype == key.dtype == value.dtype
        and s.dtype == z.dtype == SUMS.get(value.dtype)
        and query.device == key.device == value.device == s.device == z.device
        and query.layout is key.layout is value.layout is torch.strided
        and call.state_indices is None
        and isinstance(call.normalize, bool)
        and isinstance(enable_gqa, bool)
        and isinstance(inplace, bool)
        and isinstance(call.eps, float)
        and 0 <= call.eps < math.inf
        and isinstance(backend, str)
    )


def check_state(
    state: LinearAttentionState, name: str, sequences: int | None, value: Tensor
) -> None:
    """Checks type, heads, value dim, dtype, device and the number of sequences (None: any number).

    `check_feature_dim` checks F, which is known only once the feature map is.
    """
    if not isinstance(state, LinearAttentionState):
        raise TypeError(expected(name, "a LinearAttentionState", _kind(state)))
    if not all(isinstance(x, Tensor) and x.ndim > 2 for x in state):
        raise TypeError(expected(name, "tensors s (B, H, F, M) and z (B, H, F)", quote(state)))
    feature_dim = state.z.shape[-1]
    batch = state.z.shape[0] if sequences is None else sequences
    wanted = (batch, value.shape[1], feature_dim, value.shape[-1])
    if _shape(state.s) != wanted or _shape(state.z) != wanted[:3]:
        got = f"s {_shape(state.s)} and z {_shape(state.z)}"
        raise ValueError(expected(name, f"s {wanted} and z {wanted[:3]}", got))
    dtype = accumulation_dtype(value.dtype)
    if state.s.dtype != dtype or state.z.dtype != dtype:
        raise TypeError(
            expected(
                name,
                f"{dtype} for {value.dtype} inputs",
                f"{state.s.dtype} and {state.z.dtype}",
                "use LinearAttentionState.to",
            )
        )
    if state.s.device != value.device or state.z.device != value.device:
        got = f"{state.s.device} and {state.z.device}"
        raise ValueError(expected(name, f"tensors on {value.device}", got, "move them"))


def check_feature_dim(state: LinearAttentionState | None, name: str, feature_dim: int) -> None:
    """Checks that a state belongs to the feature map: its F is the map's."""
    if state is not None and state.z.shape[-1] != feature_dim:
        wanted = f"feature dim {feature_dim}, that of the feature map"
        raise ValueError(expected(name, wanted, state.z.shape[-1]))


def check_options(eps: float, backend: str, **flags: bool) -> None:
    """Checks what is not a tensor: eps must be finite and at least 0, the flags bool."""
    if not isinstance(eps, (int, float)) or isinstance(eps, bool):
        raise TypeError(expected("eps", "a number", _kind(eps)))
    if not 0 <= eps <= sys.float_info.max:
        raise ValueError(expected("eps", "0 or more, finite", eps))
    check_backend_name(backend)
    _check_flags(**flags)


def check_backend_name(name: str) -> None:
    """Checks that the name is a str; the registry checks whether such a backend exists."""
    if not isinstance(name, str):
        advice = "pass 'auto' for the fastest"
        raise TypeError(expected("backend", "a name", _kind(name), advice))


def _check_tensors(layout: str, dims: int, **tensors: Tensor) -> None:
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(expected(name, "a torch.Tensor", _kind(x)))
        if x.layout is not torch.strided or x.is_nested:
            got, advice = f"the layout {x.layout}", "pass x.to_dense()"
            if x.is_nested:
                got = "a nested tensor"
                advice = "pad it and pass key_lengths, or pack it and pass cu_seqlens"
            raise TypeError(expected(name, "a dense tensor", got, advice))
        if x.dim() != dims:
            raise ValueError(expected(name, f"{dims} dimensions {layout}", f"shape {_shape(x)}"))
        if x.dtype not in FLOATS:
            wanted = "float64, float32, bfloat16 or float16"
            raise TypeError(expected(name, wanted, x.dtype, "convert it"))
    like = next(iter(tensors))
    first = tensors[like]
    for name, x in tensors.items():
        if x.dtype != first.dtype:
            got = f"{first.dtype} and {x.dtype}"
            raise TypeError(expected(f"{like} and {name}", "one dtype", got, "convert one"))
        if x.device != first.device:
            got = f"{first.device} and {x.device}"
            raise ValueError(expected(f"{like} and {name}", "one device", got, "move one"))


def _check_flags(**flags: bool) -> None:
    """Checks that each flag is a bool; other truthy or falsy values are refused."""
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(expected(name, "True or False", quote(value)))


def _check_equal(what: str, left: str, a: int, right: str, b: int) -> None:
    if a != b:
        raise ValueError(expected(f"{left} and {right}", f"the same {what}", f"{a} and {b}"))


def _check_int_vector(name: str, x: Tensor, device: torch.device) -> None:
    check_integers(name, x, device)
    if x.dim() != 1:
        raise ValueError(expected(name, "one dimension", f"shape {_shape(x)}"))


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _kind(x: object) -> str:
    return f"a value of type {type(x).__name__}"


def complete_attention(call: AttentionCall) -> AttentionCall:
    """The call with its mask as (B, L), its decay as (B, H_kv, L), and eps 0 if not normalized.

    Integers on a CPU are copies, so that no other thread changes them after they were checked.
    """
    if call.key_lengths is not None or call.cu_seqlens is not None:
        call = call._replace(
            key_lengths=copy_integers(call.key_lengths), cu_seqlens=copy_integers(call.cu_seqlens)
        )
    if call.attn_mask is not None:
        call = call._replace(attn_mask=_key_mask(call.attn_mask, call))
    if call.log_decay is not None:
        _check_causal_decay(call)
        call = call._replace(log_decay=position_decay(call.log_decay, call))
    return call if call.normalize else call._replace(eps=0.0)


def complete_step(call: StepCall) -> StepCall:
    """The same for a step: its decay as (B, H_kv), its slots on the device of the state."""
    if call.log_decay is not None:
        call = call._replace(log_decay=_step_decay(call.log_decay, call))
    if call.state_indices is not None:
        call = call._replace(state_indices=copy_integers(call.state_indices.to(call.device)))
    return call if call.normalize else call._replace(eps=0.0)


def copy_integers(x: Tensor | None) -> Tensor | None:
    """A copy in int64 of numbers on a CPU, by which native code reads memory; others as they are.

    They may share memory with a NumPy array. Kernels on a GPU ignore numbers out of range.
    """
    if x is None or x.device.type != "cpu":
        return x
    return x.to(torch.int64, copy=True)


def _key_mask(mask: Tensor, call: AttentionCall) -> Tensor:
    """The mask as (B, L), a view where it can be."""
    _check_tensor("attn_mask", mask, call.device)
    if mask.dtype != torch.bool:
        advice = "True takes part; a float mask of 0 and -inf is mask == 0"
        raise TypeError(expected("attn_mask", "torch.bool", mask.dtype, advice))
    batch, length = call.batch, call.key_length
    per_key = mask if mask.dim() == 2 else _without_queries(mask, batch, length)
    # Not `in`, by which Dynamo finds a number unequal to a symbol without asking for its value.
    if any(x != 1 and x != n for x, n in zip(per_key.shape, (batch, length), strict=True)):
        wanted, got = f"(batch, length) = {(batch, length)}", f"shape {tuple(per_key.shape)}"
        advice = "keys alone may be masked; for a causal mask pass is_causal=True"
        raise ValueError(expected("attn_mask", wanted, got, advice))
    return per_key.to(call.device).expand(batch, length)


def _without_queries(mask: Tensor, batch: int, length: int) -> Tensor:
    """A mask that broadcasts to (B, 1, 1, L), as (B or 1, L or 1)."""
    shape = (1,) * (4 - mask.dim()) + tuple(mask.shape)
    if len(shape) != 4 or shape[1:3] != (1, 1):
        raise ValueError(
            expected(
                "attn_mask",
                f"(batch, length) or what broadcasts to {(batch, 1, 1, length)}",
                f"shape {tuple(mask.shape)}",
                "a mask that differs between heads or queries needs softmax attention; keys later "
                "than the query are left out by is_causal=True",
            )
        )
    return mask.reshape(shape[0], shape[3])


def _check_causal_decay(call: AttentionCall) -> None:
    if not call.is_causal:
        advice = "without an order of positions nothing decays"
        raise ValueError(expected("log_decay", "is_causal=True", "a non-causal call", advice))


def position_decay(decay: Tensor, call: AttentionCall) -> Tensor:
    """The decay as (B, H_kv, L), in the dtype of the sums."""
    heads, shape = call.kv_heads, (call.batch, call.kv_heads, call.key_length)
    decay = _wide_decay(decay, call.value, (heads,), shape)
    return decay[:, None].expand(shape) if decay.dim() == 1 else decay


def _step_decay(decay: Tensor, call: StepCall) -> Tensor:
    shape = (call.batch, call.kv_heads)
    return _wide_decay(decay, call.value, shape[1:], shape).expand(shape)


def _wide_decay(decay: Tensor, value: Tensor, *shapes: tuple[int, ...]) -> Tensor:
    """The decay in the dtype of the sums; refuses a shape that is not one of `shapes`."""
    _check_tensor("log_decay", decay, value.device)
    if not decay.is_floating_point():
        raise TypeError(expected("log_decay", "floating point", decay.dtype, "convert it"))
    # Shapes of other lengths are not compared: that would compare a batch with a number of heads.
    # Not by `in`, as in `_key_mask`.
    if all(tuple(decay.shape) != x for x in shapes if len(x) == decay.dim()):
        wanted = " or ".join(f"{x}" for x in shapes)
        raise ValueError(expected("log_decay", f"shape {wanted}", f"shape {tuple(decay.shape)}"))
    if decay.device != value.device:
        got = f"a tensor on {decay.device}"
        raise ValueError(expected("log_decay", f"one on {value.device}", got, "move it"))
    return decay.to(accumulation_dtype(value.dtype))


def in_one_dtype(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Under autocast, casts tensors of different dtypes to autocast's dtype.

    Otherwise returns them unchanged, also where one is float64, which autocast does not cast.
    """
    tensors = query, key, value
    if not all(isinstance(x, Tensor) and x.is_floating_point() for x in tensors):
        return tensors
    dtypes, dtype = {x.dtype for x in tensors}, autocast_dtype(query.device.type)
    if dtype is None or len(dtypes) == 1 or torch.float64 in dtypes:
        return tensors
    return query.to(dtype), key.to(dtype), value.to(dtype)


def check_heads(query: Tensor, key: Tensor, value: Tensor, *, enable_gqa: bool) -> None:
    """Checks that keys and values have equal numbers of heads, and queries that or a multiple."""
    heads, kv_heads = query.shape[1], key.shape[1]
    if kv_heads != value.shape[1]:
        got = f"{kv_heads} and {value.shape[1]}"
        raise ValueError(expected("key and value", "the same number of heads", got))
    if heads == kv_heads:
        return
    if not enable_gqa:
        got = f"{heads} and {kv_heads}"
        advice = "pass enable_gqa=True where groups of query heads share a key/value head"
        raise ValueError(expected("query and key", "the same number of heads", got, advice))
    if not heads or not kv_heads or heads % kv_heads:
        wanted = f"query heads in a multiple of the {kv_heads} key/value heads"
        raise ValueError(expected("enable_gqa=True", wanted, heads))


def check_slots(call: StepCall, indices: Tensor, *, inplace: bool) -> None:
    """Checks kind, dtype and shape of `state_indices`; the numbers are checked by the operator."""
    check_integers("state_indices", indices, call.device)
    if tuple(indices.shape) != (call.batch,):
        got = f"shape {tuple(indices.shape)}"
        raise ValueError(expected("state_indices", f"shape {(call.batch,)}, a slot a row", got))
    if not inplace:
        advice = "the states stay in their slots"
        raise ValueError(expected("state_indices", "inplace=True", "inplace=False", advice))


def pack_results(
    out: Tensor, normalizer: Tensor | None, state: LinearAttentionState | None
) -> Tensor | tuple[Tensor | LinearAttentionState, ...]:
    """What the caller gets: the output, then normalizer and state if they were asked for."""
    extras = [x for x in (normalizer, state) if x is not None]
    return (out, *extras) if extras else out


def check_integers(name: str, x: Tensor, device: torch.device) -> None:
    """Refuses what is no tensor of int32 or int64, and one on meta where `device` is another."""
    _check_tensor(name, x, device)
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(expected(name, "int32 or int64", x.dtype, "convert it"))


def _check_tensor(what: str, x: object, device: torch.device) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(expected(what, "a torch.Tensor", quote(x)))
    # Not x.is_meta: a fake tensor has a device of its own.
    if x.device.type == "meta" and device.type != "meta":
        got, advice = "one on the meta device", f"make it on {device}"
        raise ValueError(expected(what, "a tensor with numbers", got, advice))


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
    call = check_attention(call, backend, enable_gqa=enable_gqa)
    if call.feature_map == "identity" and not _is_applied_inside(feature_map):
        _check_bare_sums(call, feature_map)
        query, key = _map_features(call.query, _erase_padding(call), feature_map)
        call = call._replace(query=query, key=key)
    if call.initial_state is not None:
        check_feature_dim(call.initial_state, "initial_state", call.key.shape[-1])
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
    call = check_step(call, backend, enable_gqa=enable_gqa, inplace=inplace)
    if call.feature_map == "identity" and not _is_applied_inside(feature_map):
        # Feature maps act on (B, H, N, D); a step is a sequence of one.
        query, key = _map_features(call.query[:, :, None], call.key[:, :, None], feature_map)
        call = call._replace(query=query[:, :, 0], key=key[:, :, 0])
    if call.state.z.shape[-1] != call.key.shape[-1]:
        check_feature_dim(call.state, "state", call.key.shape[-1])
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
