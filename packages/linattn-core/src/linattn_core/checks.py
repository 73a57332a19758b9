"""What a call must satisfy: checked once, here. What is behind the operators trusts its callers."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from linattn_core.arguments import (
    check_heads,
    check_integers,
    check_slots,
    complete_attention,
    complete_step,
    in_one_dtype,
)
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.errors import expected, quote
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
        and q[1] == k[1] == v[1]
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
        and enable_gqa is False
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
            return call
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
    """True only for tensors without further arguments that `check_step` accepts."""
    query, key, value, state = call[:4]
    if not isinstance(state, LinearAttentionState):
        return False
    s, z = state
    return (
        query.shape == key.shape
        and query.dtype == key.dtype == value.dtype
        and s.dtype == z.dtype == SUMS.get(value.dtype)
        and len(query.shape) == len(z.shape) == 3
        and value.shape[:2] == query.shape[:2] == z.shape[:2]
        and s.shape == (*z.shape, *value.shape[2:])
        and query.device == key.device == value.device == s.device == z.device
        and query.layout is key.layout is value.layout is torch.strided
        and call.state_indices is None
        and call.log_decay is None
        and call.normalize is True
        and enable_gqa is False
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
