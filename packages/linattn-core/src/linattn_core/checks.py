"""What a call must satisfy before any backend sees it; every refusal is one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from linattn_core.state import LinearAttentionState, accumulation_dtype

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _check_tensors(names: Sequence[str], tensors: Sequence[Tensor], layout: str, dims: int) -> None:
    for name, x in zip(names, tensors, strict=True):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} was expected to be a torch.Tensor and is {type(x).__name__}.")
        if x.dim() != dims:
            raise ValueError(
                f"{name} was expected to have {dims} dimensions {layout} and has shape {_shape(x)}."
            )
        if x.dtype not in FLOATS:
            raise TypeError(
                f"{name} was expected to be float64, float32, bfloat16 or float16 and is "
                f"{x.dtype}; convert it."
            )
    first = tensors[0]
    for name, x in zip(names[1:], tensors[1:], strict=True):
        if x.dtype != first.dtype:
            raise TypeError(
                f"{names[0]} and {name} were expected to have one dtype and have "
                f"{first.dtype} and {x.dtype}."
            )
        if x.device != first.device:
            raise ValueError(
                f"{names[0]} and {name} were expected on one device and are on "
                f"{first.device} and {x.device}."
            )


def _check_equal(what: str, left: str, a: int, right: str, b: int) -> None:
    if a != b:
        raise ValueError(
            f"{left} and {right} were expected to have the same {what} and have {a} and {b}."
        )


def check_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    is_causal: bool,
    key_lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    initial_state: LinearAttentionState | None,
) -> None:
    """Checks shapes, dtypes, devices and combinations of `linear_attention`.

    The numbers inside `key_lengths` and `cu_seqlens` are checked by the operator, as they are not
    known while a graph is traced.
    """
    _check_tensors(("query", "key", "value"), (query, key, value), "(batch, heads, length, dim)", 4)
    for name, other in (("key", key), ("value", value)):
        _check_equal("batch size", "query", query.shape[0], name, other.shape[0])
        _check_equal("number of heads", "query", query.shape[1], name, other.shape[1])
    _check_equal("dim", "query", query.shape[3], "key", key.shape[3])
    _check_equal("length", "key", key.shape[2], "value", value.shape[2])
    if is_causal and query.shape[2] != key.shape[2]:
        raise ValueError(
            "is_causal=True was expected to come with as many queries as keys and came with "
            f"{query.shape[2]} queries and {key.shape[2]} keys; continue a sequence with "
            "initial_state instead."
        )
    if initial_state is not None and not is_causal:
        raise ValueError(
            "initial_state was given to a non-causal call, where it has no meaning; pass "
            "is_causal=True or leave it out."
        )
    if key_lengths is not None:
        _check_int_vector("key_lengths", key_lengths)
        _check_equal("batch size", "query", query.shape[0], "key_lengths", key_lengths.shape[0])
    if cu_seqlens is not None:
        _check_packing(query, key, key_lengths, cu_seqlens)
    sequences = query.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if initial_state is not None:
        check_state(initial_state, "initial_state", sequences, query, value)


def _check_packing(
    query: Tensor, key: Tensor, key_lengths: Tensor | None, cu_seqlens: Tensor
) -> None:
    _check_int_vector("cu_seqlens", cu_seqlens)
    if key_lengths is not None:
        raise ValueError(
            "key_lengths and cu_seqlens were both given; pass cu_seqlens for packed sequences or "
            "key_lengths for padded ones."
        )
    if query.shape[0] != 1:
        raise ValueError(
            f"cu_seqlens was expected to come with batch size 1 and came with {query.shape[0]}; "
            "pack the sequences end to end along the length."
        )
    if cu_seqlens.shape[0] < 1:
        raise ValueError("cu_seqlens was expected to hold at least one number, 0, and is empty.")
    _check_equal("length when packed", "query", query.shape[2], "key", key.shape[2])


def _check_int_vector(name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} was expected to be a torch.Tensor and is {type(x).__name__}.")
    if x.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} was expected to be int32 or int64 and is {x.dtype}.")
    if x.dim() != 1:
        raise ValueError(f"{name} was expected to have one dimension and has shape {_shape(x)}.")


def check_state(
    state: LinearAttentionState, name: str, sequences: int, query: Tensor, value: Tensor
) -> None:
    """Checks kind, batch, heads, value dim, dtype and device; F is checked where it is known."""
    if not isinstance(state, LinearAttentionState):
        raise TypeError(
            f"{name} was expected to be a LinearAttentionState and is {type(state).__name__}."
        )
    if not all(isinstance(x, Tensor) and x.ndim > 2 for x in state):
        raise TypeError(f"{name} was expected to hold tensors s (B, H, F, M) and z (B, H, F).")
    feature_dim = state.z.shape[-1]
    expected = (sequences, query.shape[1], feature_dim, value.shape[-1])
    if _shape(state.s) != expected or _shape(state.z) != expected[:3]:
        raise ValueError(
            f"{name} was expected to have s {expected} and z {expected[:3]} and has s "
            f"{_shape(state.s)} and z {_shape(state.z)}."
        )
    kept = accumulation_dtype(value.dtype)
    if state.s.dtype != kept or state.z.dtype != kept:
        raise TypeError(
            f"{name} was expected to be {kept} for {value.dtype} inputs and is {state.s.dtype} "
            f"and {state.z.dtype}; use LinearAttentionState.to."
        )
    if state.s.device != value.device or state.z.device != value.device:
        raise ValueError(
            f"{name} was expected on {value.device} and is on {state.s.device} and "
            f"{state.z.device}."
        )


def check_feature_dim(state: LinearAttentionState | None, name: str, feature_dim: int) -> None:
    """Checks that a state belongs to the feature map: its F is the map's."""
    if state is not None and state.z.shape[-1] != feature_dim:
        raise ValueError(
            f"{name} was expected to have feature dim {feature_dim}, that of the feature map, and "
            f"has {state.z.shape[-1]}."
        )


def check_step(query: Tensor, key: Tensor, value: Tensor, state: LinearAttentionState) -> None:
    """Checks shapes, dtypes and devices of `linear_attention_step`.

    Decoding makes this call thousands of times a second, so a right one passes in one expression.
    """
    if isinstance(state, LinearAttentionState):
        try:
            if _is_step(query, key, value, *state):
                return
        except AttributeError:
            pass  # something is no tensor, and is named below
    _check_tensors(("query", "key", "value"), (query, key, value), "(batch, heads, dim)", 3)
    if query.shape != key.shape:
        raise ValueError(
            "query and key were expected to have one shape (batch, heads, dim) and have "
            f"{_shape(query)} and {_shape(key)}."
        )
    if value.shape[:2] != query.shape[:2]:
        raise ValueError(
            f"value was expected to have batch and heads {_shape(query)[:2]} like query and has "
            f"shape {_shape(value)}."
        )
    check_state(state, "state", query.shape[0], query, value)


def _is_step(query: Tensor, key: Tensor, value: Tensor, s: Tensor, z: Tensor) -> bool:
    """True only if `check_step` would find nothing."""
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


def check_how(eps: float, backend: str, **flags: bool) -> None:
    """Checks what is not a tensor: eps may be zero, but not negative, infinite or NaN."""
    if not isinstance(eps, (int, float)):
        raise TypeError(f"eps was expected to be a number and is a {type(eps).__name__}.")
    if not 0 <= eps < math.inf:
        raise ValueError(f"eps was expected to be 0 or more, finite, and is {eps}.")
    if not isinstance(backend, str):
        raise TypeError(
            f"backend was expected to be a name and is a {type(backend).__name__}; pass 'auto' for "
            "the fastest."
        )
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} was expected to be True or False and is {value!r}.")


def check_lengths(key_lengths: Tensor | None, cu_seqlens: Tensor | None, length: int) -> None:
    """Checks the numbers: 0 <= key_lengths <= L; cu_seqlens from 0 to L, never falling.

    Numbers on a GPU are waited for. While a CUDA graph is captured nobody can wait: they go on
    unread, and the kernels leave out whatever lies outside the tensors.
    """
    lengths = key_lengths if cu_seqlens is None else cu_seqlens
    if lengths is not None and lengths.is_cuda and torch.cuda.is_current_stream_capturing():
        return
    if key_lengths is not None and key_lengths.numel():
        low, high = int(key_lengths.min()), int(key_lengths.max())
        if low < 0 or high > length:
            raise ValueError(
                f"key_lengths were expected between 0 and the key length {length} and range from "
                f"{low} to {high}."
            )
    if cu_seqlens is not None:
        bounds = cu_seqlens.tolist()
        if bounds[0] != 0 or bounds[-1] != length:
            raise ValueError(
                f"cu_seqlens was expected to run from 0 to the packed length {length} and runs "
                f"from {bounds[0]} to {bounds[-1]}."
            )
        if any(stop < start for start, stop in pairwise(bounds)):
            raise ValueError(f"cu_seqlens was expected never to fall and is {bounds}.")
