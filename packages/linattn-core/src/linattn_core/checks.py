"""What a call must satisfy before any backend sees it; every refusal is one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from linattn_core.arguments import (
    check_decay_numbers,
    check_flags,
    check_heads,
    check_slot_numbers,
    check_slots,
    in_one_dtype,
)
from linattn_core.calls import AttentionCall, StepCall
from linattn_core.errors import expected, quote
from linattn_core.state import LinearAttentionState, accumulation_dtype

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_NAMES = ("query", "key", "value")


def checked_attention(call: AttentionCall, *, enable_gqa: bool = False) -> AttentionCall:
    """The call, after checks of shapes, dtypes, devices and combinations.

    Under autocast, tensors of different dtypes are cast as autocast casts them.

    This costs a noticeable share of a short call, so one expression accepts a correct call that has
    neither lengths nor states. The numbers inside `key_lengths` and `cu_seqlens` are checked by the
    operator, because they are not known while a graph is traced.

    Raises:
        ValueError, TypeError: as for `linear_attention`.
    """
    try:
        if _is_plain(call):
            return call
    except AttributeError:
        pass  # an argument is not a tensor; the checks below name it
    query, key, value = in_one_dtype(call.query, call.key, call.value)
    call = call._replace(query=query, key=key, value=value)
    _check_tensors((query, key, value), "(batch, heads, length, dim)", 4)
    for name, other in (("key", key), ("value", value)):
        _check_equal("batch size", "query", query.shape[0], name, other.shape[0])
    check_heads(query, key, value, enable_gqa=enable_gqa)
    _check_equal("dim", "query", query.shape[3], "key", key.shape[3])
    _check_equal("length", "key", key.shape[2], "value", value.shape[2])
    _check_causal(call)
    if call.key_lengths is not None:
        _check_int_vector("key_lengths", call.key_lengths)
        batch = call.key_lengths.shape[0]
        _check_equal("batch size", "query", query.shape[0], "key_lengths", batch)
    if call.cu_seqlens is not None:
        _check_packing(call, call.cu_seqlens)
    if call.initial_state is not None:
        check_state(call.initial_state, "initial_state", call.num_sequences, value)
    return call


def _is_plain(call: AttentionCall) -> bool:
    """True only if the call has three tensors alone and `checked_attention` would accept them."""
    query, key, value, is_causal = call[:4]
    q, k, v = query.shape, key.shape, value.shape
    return (
        len(q) == len(k) == len(v) == 4
        and q[0] == k[0] == v[0]
        and q[1] == k[1] == v[1]
        and q[3] == k[3]
        and k[2] == v[2]
        and (not is_causal or q[2] == k[2])
        and query.dtype == key.dtype == value.dtype
        and query.dtype in FLOATS
        and query.device == key.device == value.device
        and call.key_lengths is None
        and call.cu_seqlens is None
        and call.initial_state is None
        and call.attn_mask is None
        and call.log_decay is None
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
    _check_int_vector("cu_seqlens", cu_seqlens)
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


def checked_step(call: StepCall, *, enable_gqa: bool = False, inplace: bool = False) -> StepCall:
    """The same for `linear_attention_step`.

    Decoding makes this call thousands of times per second, so one expression accepts a correct one.
    """
    query, key, value, state = call[:4]
    plain = call.state_indices is None and call.log_decay is None
    if plain and isinstance(state, LinearAttentionState):
        try:
            if _is_step(query, key, value, *state):
                return call
        except AttributeError:
            pass  # an argument is not a tensor; the checks below name it
    query, key, value = in_one_dtype(query, key, value)
    _check_tensors((query, key, value), "(batch, heads, dim)", 3)
    _check_step_shapes(query, key, value, enable_gqa=enable_gqa)
    if call.state_indices is not None:
        check_slots(call, call.state_indices, inplace=inplace)
    check_state(state, "state", query.shape[0] if call.state_indices is None else None, value)
    return call._replace(query=query, key=key, value=value)


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


def _is_step(query: Tensor, key: Tensor, value: Tensor, s: Tensor, z: Tensor) -> bool:
    """True only if `checked_step` would accept the tensors."""
    return (
        query.shape == key.shape
        and query.dtype == key.dtype == value.dtype
        and value.dtype in FLOATS
        and s.dtype == z.dtype == accumulation_dtype(value.dtype)
        and len(query.shape) == 3
        and value.shape[:2] == query.shape[:2] == z.shape[:2]
        and s.shape == (*z.shape, *value.shape[2:])
        and query.device == key.device == value.device == s.device == z.device
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
    if not isinstance(eps, (int, float)):
        raise TypeError(expected("eps", "a number", _kind(eps)))
    if not 0 <= eps < math.inf:
        raise ValueError(expected("eps", "0 or more, finite", eps))
    check_backend_name(backend)
    check_flags(**flags)


def check_backend_name(name: str) -> None:
    """Checks that the name is a str; the registry checks whether such a backend exists."""
    if not isinstance(name, str):
        advice = "pass 'auto' for the fastest"
        raise TypeError(expected("backend", "a name", _kind(name), advice))


def check_decay(decay: Tensor) -> None:
    """Checks the numbers of a decay; skipped while a CUDA graph is captured."""
    if not (decay.is_cuda and torch.cuda.is_current_stream_capturing()):
        check_decay_numbers(decay)


def check_slot_indices(indices: Tensor, slots: int) -> None:
    """Checks the numbers of `state_indices`; skipped while a CUDA graph is captured."""
    if not (indices.is_cuda and torch.cuda.is_current_stream_capturing()):
        check_slot_numbers(indices, slots)


def check_lengths(call: AttentionCall) -> None:
    """Checks the numbers: 0 <= key_lengths <= L; cu_seqlens from 0 to L, never decreasing.

    Reading numbers on a GPU waits for it. While a CUDA graph is captured, waiting is not allowed:
    the numbers are not checked, and the kernels ignore positions outside the tensors.
    """
    key_lengths, cu_seqlens, length = call.key_lengths, call.cu_seqlens, call.key_length
    lengths = key_lengths if cu_seqlens is None else cu_seqlens
    if lengths is None or (lengths.is_cuda and torch.cuda.is_current_stream_capturing()):
        return
    if cu_seqlens is not None:
        _check_bounds(cu_seqlens.tolist(), length)
    if key_lengths is not None and key_lengths.numel():
        low, high = int(key_lengths.min()), int(key_lengths.max())
        if low < 0 or high > length:
            wanted = f"numbers between 0 and the key length {length}"
            raise ValueError(expected("key_lengths", wanted, f"a range from {low} to {high}"))


def _check_bounds(bounds: list[int], length: int) -> None:
    if bounds[0] != 0 or bounds[-1] != length:
        wanted = f"numbers from 0 to the packed length {length}"
        raise ValueError(expected("cu_seqlens", wanted, f"from {bounds[0]} to {bounds[-1]}"))
    if any(stop < start for start, stop in pairwise(bounds)):
        raise ValueError(expected("cu_seqlens", "numbers that never fall", bounds))


def _check_tensors(tensors: Sequence[Tensor], layout: str, dims: int) -> None:
    for name, x in zip(_NAMES, tensors, strict=True):
        if not isinstance(x, Tensor):
            raise TypeError(expected(name, "a torch.Tensor", _kind(x)))
        if x.dim() != dims:
            raise ValueError(expected(name, f"{dims} dimensions {layout}", f"shape {_shape(x)}"))
        if x.dtype not in FLOATS:
            wanted = "float64, float32, bfloat16 or float16"
            raise TypeError(expected(name, wanted, x.dtype, "convert it"))
    first = tensors[0]
    for name, x in zip(_NAMES, tensors, strict=True):
        if x.dtype != first.dtype:
            got = f"{first.dtype} and {x.dtype}"
            raise TypeError(expected(f"query and {name}", "one dtype", got, "convert one"))
        if x.device != first.device:
            got = f"{first.device} and {x.device}"
            raise ValueError(expected(f"query and {name}", "one device", got, "move one"))


def _check_equal(what: str, left: str, a: int, right: str, b: int) -> None:
    if a != b:
        raise ValueError(expected(f"{left} and {right}", f"the same {what}", f"{a} and {b}"))


def _check_int_vector(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(expected(name, "a torch.Tensor", _kind(x)))
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(expected(name, "int32 or int64", x.dtype, "convert it"))
    if x.dim() != 1:
        raise ValueError(expected(name, "one dimension", f"shape {_shape(x)}"))


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _kind(x: object) -> str:
    return f"a value of type {type(x).__name__}"
