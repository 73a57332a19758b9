"""Checks of the numbers inside tensors, by the operators: a compiler that traces has none yet.

The backward pass checks again what native code relies on. A tensor's memory can change between the
passes where autograd does not see it: by its NumPy array, by an assignment to `.data`, or because
its storage was resized.

Numbers on a GPU are not checked, as reading them would wait for it; nor are those that cannot be
read (`can_be_read`). Kernels on a GPU ignore positions outside of the tensors.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output, StepCall
from linattn_core.errors import expected
from linattn_core.state import LinearAttentionState
from linattn_core.torch_private import is_fake_or_mapped


def check_attention_values(call: AttentionCall) -> None:
    """0 <= key_lengths <= L; cu_seqlens from 0 to L, never falling; log_decay <= 0."""
    length = call.key_length
    if call.cu_seqlens is not None and _is_at_hand(call.cu_seqlens):
        check_bounds(call.cu_seqlens.tolist(), length)
    if call.key_lengths is not None and _is_at_hand(call.key_lengths) and call.batch:
        check_key_lengths(call.key_lengths, length)
    if call.log_decay is not None:
        _check_decay(call.log_decay)


def check_saved(call: AttentionCall, output: Output) -> None:
    """The inputs of a backward pass still are what native code takes them for."""
    out, normalizer = output.out, output.normalizer
    batch, heads, length = normalizer.shape
    keys = length if call.is_causal else call.key.shape[2]
    features, values = call.query.shape[3], out.shape[3]
    kv_heads = call.key.shape[1]
    query, key, value, decay = call.query, call.key, call.value, call.log_decay
    mask, state, device = call.attn_mask, call.initial_state, out.device
    grouped = kv_heads == heads or (kv_heads and heads % kv_heads == 0)
    fits = {
        "query": query.shape == (batch, heads, length, features)
        and (query.dtype, query.device) == (key.dtype, device),
        "key": key.shape == (batch, kv_heads, keys, features)
        and grouped
        and keys == value.shape[2]
        and (key.dtype, key.device) == (query.dtype, device),
        "value": _fits(value, (batch, kv_heads, keys, values), out),
        "log_decay": decay is None or _fits(decay, (batch, kv_heads, keys), normalizer),
        "attn_mask": mask is None or mask.shape == (batch, keys),
        "initial_state": state is None or _fits_state(call, state, normalizer),
    }
    if not all(fits.values()):
        changed = [name for name, fit in fits.items() if not fit]
        parts = [x for name in changed for x in _tensors(getattr(call, name))]
        got = ", ".join(f"{x.dtype} {tuple(x.shape)} on {x.device}" for x in parts)
        wanted = "the shape, dtype and device of the forward pass"
        advice = "leave the inputs as they are until backward() has run"
        raise ValueError(expected(" and ".join(changed), wanted, got, advice))
    _check_memory(call, output)
    if call.key_lengths is not None and not call.is_causal:
        check_attention_values(call)


def _check_memory(call: AttentionCall, output: Output) -> None:
    """What is saved still has its memory. Integers are copies that nobody else has."""
    mask, decay, initial = call.attn_mask, call.log_decay, call.initial_state
    saved: tuple[tuple[str, Tensor | LinearAttentionState | None], ...] = (
        ("query", call.query), ("key", call.key), ("value", call.value), ("attn_mask", mask),
        ("log_decay", decay), ("initial_state", initial), *zip(Output._fields, output, strict=True),
    )  # fmt: skip
    for name, x in saved:
        if x is not None and not all(map(_is_held, _tensors(x))):
            wanted, got = "the memory of the forward pass", "memory that was freed"
            advice = "keep the storage until backward() has run"
            raise ValueError(expected(name, wanted, got, advice))


def _is_held(x: Tensor) -> bool:
    """Whether the storage reaches the end of the last number."""
    size = x.nbytes
    if not x.is_contiguous():
        reach = ((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
        size = x.itemsize * (1 + sum(reach))
    end = x.itemsize * x.storage_offset() + size
    return end <= x.untyped_storage().nbytes() or not x.numel()


def _tensors(x: Tensor | LinearAttentionState) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


def _fits_state(call: AttentionCall, state: LinearAttentionState, like: Tensor) -> bool:
    shape = (call.num_sequences, call.kv_heads, call.feature_dim)
    return _fits(state.s, (*shape, call.value_dim), like) and _fits(state.z, shape, like)


def _fits(x: Tensor, shape: tuple[int, ...], like: Tensor) -> bool:
    return x.shape == shape and x.dtype == like.dtype and x.device == like.device


def check_step_values(call: StepCall) -> None:
    """log_decay <= 0; state_indices are -1 or slots of the state, each used once."""
    if call.log_decay is not None:
        _check_decay(call.log_decay)
    if call.state_indices is not None and _is_at_hand(call.state_indices):
        _check_slots(call.state_indices.tolist(), call.state.z.shape[0])


def can_be_read(x: Tensor) -> bool:
    """Whether the numbers of a tensor can be read now.

    They cannot while a compiler traces, under vmap, on the meta device, of fake tensors, and while
    a CUDA graph is captured, which must not wait for the GPU.
    """
    if torch.compiler.is_compiling() or x.is_meta or is_fake_or_mapped(x):
        return False
    return not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _is_at_hand(x: Tensor) -> bool:
    """Whether its numbers can be read without waiting for a GPU."""
    return x.device.type == "cpu" and can_be_read(x)


def check_bounds(bounds: list[int], length: int) -> None:
    """The numbers of cu_seqlens go from 0 to the packed length and never fall."""
    if bounds[0] != 0 or bounds[-1] != length:
        wanted = f"numbers from 0 to the packed length {length}"
        raise ValueError(expected("cu_seqlens", wanted, f"from {bounds[0]} to {bounds[-1]}"))
    if any(stop < start for start, stop in pairwise(bounds)):
        raise ValueError(expected("cu_seqlens", "numbers that never fall", bounds))


def check_key_lengths(lengths: Tensor, length: int) -> None:
    """The numbers of key_lengths, of one sequence at least, lie between 0 and the key length."""
    low, high = int(lengths.min()), int(lengths.max())
    if low < 0 or high > length:
        wanted = f"numbers between 0 and the key length {length}"
        raise ValueError(expected("key_lengths", wanted, f"a range from {low} to {high}"))


def _check_decay(decay: Tensor) -> None:
    if _is_at_hand(decay) and decay.numel() and not bool((decay <= 0).all()):
        worst = decay[~(decay <= 0)].flatten()[0].item()
        advice = "it is the logarithm of a factor of at most 1"
        raise ValueError(expected("log_decay", "numbers of at most 0", worst, advice))


def _check_slots(numbers: list[int], slots: int) -> None:
    used = [x for x in numbers if x != -1]
    if any(not 0 <= x < slots for x in used):
        wanted = f"numbers from 0 to {slots - 1}, or -1 for an empty row"
        raise ValueError(expected("state_indices", wanted, numbers))
    if len(set(used)) < len(used):
        advice = "two rows cannot update one state in one step"
        raise ValueError(expected("state_indices", "each slot once", numbers, advice))
