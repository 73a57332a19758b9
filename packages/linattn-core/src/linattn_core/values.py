"""Checks of numbers and memory of tensors, by the operators: a compiler that traces has none yet.

The backward pass checks again what native code relies on. A tensor can change between the passes
where autograd does not see it: by a hook on saved tensors, by an assignment to `.data`, or because
its storage was resized.

Numbers on a GPU are not checked, as reading them would wait for it; nor are those that cannot be
read (`can_be_read`). Kernels on a GPU ignore positions outside of the tensors.

A step in place would write numbers of a state that share memory twice (`check_own_memory`).
"""

from __future__ import annotations

import functools
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Output, StepCall
from linattn_core.errors import expected
from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_core.torch_private import is_fake_or_mapped

SavedPass = tuple[AttentionCall, Output]
Saved = TypeVar("Saved", Tensor, LinearAttentionState)


def check_attention_values(call: AttentionCall) -> None:
    """0 <= key_lengths <= L; cu_seqlens from 0 to L, never falling; log_decay <= 0."""
    length = call.key_length
    if call.cu_seqlens is not None and _is_at_hand(call.cu_seqlens):
        check_bounds(call.cu_seqlens.tolist(), length)
    if call.key_lengths is not None and _is_at_hand(call.key_lengths) and call.batch:
        check_key_lengths(call.key_lengths, length)
    if call.log_decay is not None:
        _check_decay(call.log_decay)


def restore_saved(call: AttentionCall, output: Output, grad_out: Tensor) -> SavedPass:
    """The inputs of a backward pass with the dtypes and on the device of the forward pass.

    Hooks on saved tensors may keep them otherwise, such as in half precision, where native code
    would read other memory than that of the tensors. What the dtypes were is known by `grad_out`.

    Raises:
        ValueError: the shapes do not fit together, memory was freed, or lengths are out of range.
    """
    call, output = cast_saved(call, output, grad_out)
    _check_shapes(call, output, grad_out)
    if not (call.key_lengths is call.cu_seqlens is None):
        check_attention_values(call)
    return call, output


def cast_saved(call: AttentionCall, output: Output, grad_out: Tensor) -> SavedPass:
    """The same numbers in the dtypes and on the device of the forward pass.

    Raises:
        ValueError: memory that was freed.
    """
    narrow, device = grad_out.dtype, grad_out.device
    wide = accumulation_dtype(narrow)
    query = call.query.dtype
    if query is not call.key.dtype or (query is not narrow and query is not wide):
        query = wide
    sums, output_sums = call.initial_state or _NO_SUMS, output.state or _NO_SUMS
    is_as_before = True
    for name, x, dtype in (
        ("query", call.query, query), ("key", call.key, query), ("value", call.value, narrow),
        ("attn_mask", call.attn_mask, torch.bool), ("log_decay", call.log_decay, wide),
        ("initial_state", sums[0], wide), ("initial_state", sums[1], wide),
        ("out", output.out, narrow), ("normalizer", output.normalizer, wide),
        ("state", output_sums[0], wide), ("state", output_sums[1], wide),
    ):  # fmt: skip
        if x is None:
            continue
        if not is_held(x):
            wanted, got = "the memory of the forward pass", "memory that was freed"
            advice = "keep the storage until backward() has run"
            raise ValueError(expected(name, wanted, got, advice))
        is_as_before = is_as_before and x.dtype is dtype and x.device == device
    if is_as_before:
        return call, output
    return (
        call._replace(
            query=call.query.to(device, query),
            key=call.key.to(device, query),
            value=call.value.to(device, narrow),
            attn_mask=_cast(call.attn_mask, device, torch.bool),
            log_decay=_cast(call.log_decay, device, wide),
            initial_state=_cast(call.initial_state, device, wide),
        ),
        Output(
            output.out.to(device, narrow),
            output.normalizer.to(device, wide),
            _cast(output.state, device, wide),
        ),
    )


_NO_SUMS = (None, None)


def _cast(x: Saved | None, device: torch.device, dtype: torch.dtype) -> Saved | None:
    return None if x is None else x.to(device, dtype)


def _check_shapes(call: AttentionCall, output: Output, grad_out: Tensor) -> None:
    """Shapes that native code relies on; and lengths, which rounding would change, are integers."""
    batch, heads, length, values = grad_out.shape
    kv_heads, keys, features = call.key.shape[1], call.key.shape[2], call.query.shape[3]
    sums = (call.num_sequences, kv_heads, features)
    fits = {
        "query": call.query.shape == (batch, heads, length, features),
        "key": call.key.shape == (batch, kv_heads, keys, features)
        and keys == (length if call.is_causal else call.value.shape[2])
        and (kv_heads == heads or (kv_heads > 0 and heads % kv_heads == 0)),
        "value": call.value.shape == (batch, kv_heads, keys, values),
        "log_decay": _has_shape(call.log_decay, (batch, kv_heads, keys)),
        "attn_mask": _has_shape(call.attn_mask, (batch, keys)),
        "initial_state": _has_shapes(call.initial_state, sums, values),
        "key_lengths": _is_integer(call.key_lengths),
        "cu_seqlens": _is_integer(call.cu_seqlens),
        "out": output.out.shape == grad_out.shape,
        "normalizer": output.normalizer.shape == (batch, heads, length),
        "state": _has_shapes(output.state, sums, values),
    }
    if not all(fits.values()):
        changed = [name for name, fit in fits.items() if not fit]
        records = [getattr(output if name in Output._fields else call, name) for name in changed]
        parts = [x for each in records for x in _tensors(each)]
        got = ", ".join(f"{x.dtype} {tuple(x.shape)}" for x in parts)
        advice = "leave the inputs, and what hooks on saved tensors return, in their shapes"
        raise ValueError(
            expected(" and ".join(changed), "the shape of the forward pass", got, advice)
        )


def _has_shape(x: Tensor | None, shape: tuple[int, ...]) -> bool:
    return x is None or x.shape == shape


def _has_shapes(x: LinearAttentionState | None, shape: tuple[int, ...], values: int) -> bool:
    return x is None or (x.z.shape == shape and x.s.shape == (*shape, values))


def _is_integer(x: Tensor | None) -> bool:
    return x is None or not (x.is_floating_point() or x.dtype == torch.bool)


def is_held(x: Tensor) -> bool:
    """Whether the storage reaches the end of the last number."""
    size = x.nbytes
    if not x.is_contiguous():
        reach = ((n - 1) * stride for n, stride in zip(x.shape, x.stride(), strict=True))
        size = x.itemsize * (1 + sum(reach))
    end = x.itemsize * x.storage_offset() + size
    return end <= x.untyped_storage().nbytes() or not x.numel()


def _tensors(x: Tensor | LinearAttentionState) -> tuple[Tensor, ...]:
    return (x,) if isinstance(x, Tensor) else tuple(x)


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


def check_own_memory(state: LinearAttentionState) -> None:
    """Refuses a state that has two numbers in one place; steps in place pass here each time."""
    s, z = state
    distance = z.data_ptr() - s.data_ptr()
    if s.is_contiguous() and z.is_contiguous():
        shared = -z.nbytes < distance < s.nbytes
    else:
        shared = _share(s.shape, s.stride(), z.stride(), s.itemsize, distance)
    if shared:
        wanted = "memory of its own for each number"
        got = f"shared memory: s with strides {s.stride()}, z with {z.stride()}"
        raise ValueError(expected("the state", wanted, got, "make it by .clone()"))


_Layout = tuple[tuple[int, ...], tuple[int, ...]]


@functools.lru_cache(maxsize=256)
def _share(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    z_strides: tuple[int, ...],
    itemsize: int,
    distance: int,
) -> bool:
    """The same for a state of any strides; z begins `distance` bytes after s."""
    # In bytes: the last dim is a number's own.
    s = ((*shape, itemsize), (*(itemsize * x for x in strides), 1))
    z = ((*shape[:-1], itemsize), (*(itemsize * x for x in z_strides), 1))
    if not -_extent(z) < distance < _extent(s):
        return _repeats((s, 0)) or _repeats((z, 0))
    s, z = _without_rows(s, z, distance)
    return _repeats((s, max(0, -distance)), (z, max(0, distance)))


def _extent(layout: _Layout) -> int:
    """Bytes from the first number to the end of the last."""
    last = sum((n - 1) * stride for n, stride in zip(*layout, strict=True))
    return 0 if 0 in layout[0] else last + 1


def _repeats(*tensors: tuple[_Layout, int]) -> bool:
    """Whether two numbers of tensors, each given with its place, are in one place."""
    layouts = [layout for layout, _ in tensors]
    for sizes, strides in layouts:
        pairs = zip(sizes, strides, strict=True)
        if 0 not in sizes and any(n > 1 and not stride for n, stride in pairs):
            return True
    if len(tensors) == 1 and _nests(layouts[0]):
        return False
    size = max(place + _extent(layout) for layout, place in tensors)
    taken = torch.zeros(size, dtype=torch.bool, device="cpu")
    for (sizes, strides), place in tensors:
        taken.as_strided(sizes, strides, place).fill_(True)
    return int(taken.count_nonzero()) < sum(torch.Size(sizes).numel() for sizes, _ in layouts)


def _nests(layout: _Layout) -> bool:
    """Whether every dim steps over all that the dims with smaller strides reach."""
    reached = 1
    for stride, n in sorted((stride, n) for n, stride in zip(*layout, strict=True) if n > 1):
        if stride < reached:
            return False
        reached += (n - 1) * stride
    return True


def _without_rows(s: _Layout, z: _Layout, distance: int) -> tuple[_Layout, _Layout]:
    """Both less the outer dims that they share, of which each row is apart from the next."""
    while s[0][0] == z[0][0] and s[1][0] == z[1][0]:
        inner_s, inner_z = ((sizes[1:], strides[1:]) for sizes, strides in (s, z))
        if not inner_s[0] or not inner_z[0]:
            break
        first, end = min(0, distance), max(_extent(inner_s), distance + _extent(inner_z))
        if s[1][0] < end - first:
            break
        s, z = inner_s, inner_z
    return s, z
