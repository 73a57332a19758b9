"""Calls as launches: grids, configurations, and the order of the kernels' arguments."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.native import new_gradients
from linattn_core.state import LinearAttentionState
from linattn_triton import causal, device, reads
from linattn_triton.configurations import LONG, SHORTEST, choose, power_of_two
from linattn_triton.constants import LANGUAGE_DTYPES, MAPS

# Positions of a program of `reads.normalizer_gradient`.
_ROWS = 32
# Numbers of states that a program of `causal.scan` adds up.
_SCANNED = 1_024


def causal_forward(call: AttentionCall, output: Output) -> None:
    """Writes output, normalizer and, where it is wanted, the last state."""
    options, blocks = _options(call, call.feature_dim, call.value_dim)
    segments = _segments(call)
    start = _before_keys(call, segments)
    _launch(
        causal.forward, call.num_sequences * call.heads * segments * blocks,
        *_tensors(call.query, call.key, call.value), output.out, output.normalizer,
        *_places(call), call.log_decay, *_pair(start), *_pair(output.state),
        *_sizes(call), segments, call.num_sequences, call.eps, MAP=MAPS[call.feature_map],
        NORMALIZE=call.normalize, COMPENSATE=call.key_length > LONG, **options,
    )  # fmt: skip


def normalizer_gradient(
    call: AttentionCall, output: Output, grad_out: Tensor, grad_normalizer: Tensor | None
) -> Tensor:
    """h, (B, H, N) in float32: what the gradients of queries and keys have in common."""
    h = torch.empty_like(output.normalizer)
    programs = call.batch * call.heads * -(-call.query_length // _ROWS)
    _launch(
        reads.normalizer_gradient, programs, *_tensors(grad_out), output.out, output.normalizer,
        grad_normalizer, h, call.heads, call.query_length, call.value_dim,
        NORMALIZE=call.normalize, CHUNK=_ROWS, WIDTH=power_of_two(call.value_dim),
    )  # fmt: skip
    return h


def causal_backward(
    call: AttentionCall,
    output: Output,
    grad_out: Tensor,
    h: Tensor,
    grad_state: LinearAttentionState | None,
) -> Gradients:
    """The wanted gradients: those of queries, keys and values each by a sweep of its own.

    That of `log_decay` needs the sweeps of queries and keys, and memory for the states before all
    chunks: F M / chunk numbers for each position of a key/value head.
    """
    gradients = new_gradients(call, call.wanted_gradients)
    places = _places(call)
    wants_decay = gradients.log_decay is not None
    inputs = _tensors(call.query, call.key, call.value, grad_out)
    flags: dict[str, Any] = {"MAP": MAPS[call.feature_map], "NORMALIZE": call.normalize}
    segments = _segments(call)
    sizes = (*_sizes(call), segments, call.num_sequences)
    programs = call.num_sequences * call.heads * segments
    kv_programs = call.num_sequences * call.kv_heads * segments
    read = written = None
    before: tuple[Tensor | None, Tensor | None] = (None, None)
    if gradients.query is not None or wants_decay:
        # Upstream gradients over a small normalizer are large, and their products cancel with h.
        options, blocks = _options(
            call, call.value_dim, call.feature_dim, heavy=wants_decay, cancels=True
        )
        if wants_decay:
            before = _new_states(call, options["CHUNK"], options["DOT"])
            read = h.new_empty(call.batch, call.heads, blocks, call.key_length)
        _launch(
            causal.query_gradient, programs * blocks, *inputs, output.normalizer, h,
            gradients.query, read, *before, *places, call.log_decay,
            *_pair(_before_keys(call, segments)), *sizes, **flags, **options,
        )  # fmt: skip
    wants_keys = gradients.key is not None or gradients.initial_state is not None or wants_decay
    end = None
    if wants_keys or gradients.value is not None:
        end = _scan(
            call, segments, grad_state, call.query, grad_out, h=h, normalizer=output.normalizer
        )
    if wants_keys:
        options, blocks = _options(call, call.value_dim, call.feature_dim, heavy=wants_decay)
        if wants_decay:
            written = h.new_empty(call.batch, call.kv_heads, blocks, call.key_length)
        _launch(
            causal.key_gradient, kv_programs * blocks, *inputs, output.normalizer, h,
            gradients.key, written, *before, *places, call.log_decay, *_pair(end),
            *_pair(gradients.initial_state), *sizes, **flags, **options,
        )  # fmt: skip
    if gradients.value is not None:
        options, blocks = _options(call, call.feature_dim, call.value_dim)
        _launch(
            causal.value_gradient, kv_programs * blocks,
            *_tensors(call.query, call.key, grad_out), output.normalizer, gradients.value,
            *places, call.log_decay, _pair(end)[0], *sizes, **flags, **options,
        )  # fmt: skip
    if read is not None and written is not None:
        read = read.unflatten(1, (call.kv_heads, call.groups)).sum((2, 3))
        torch.add(read, written.sum(2), out=gradients.log_decay)
    return gradients


def noncausal_forward(call: AttentionCall, output: Output) -> None:
    """Writes output, normalizer and the sums over the keys."""
    state = output.state
    assert state is not None, "a non-causal call keeps the sums over its keys"
    _add_up(call, state, call.key, call.value, call.initial_state)
    heads = call.num_sequences * call.heads
    options, blocks = _options(call, call.feature_dim, call.value_dim)
    parts = _parts(call, call.query_length, options["CHUNK"], heads * blocks)
    _launch(
        reads.read_output, heads * blocks * parts,
        *_tensors(call.query), *state, output.out, output.normalizer, call.cu_seqlens,
        *_sizes(call, call.query_length), call.eps, parts,
        MAP=MAPS[call.feature_map], NORMALIZE=call.normalize, **options,
    )  # fmt: skip


def noncausal_backward(
    call: AttentionCall,
    output: Output,
    grad_out: Tensor,
    h: Tensor,
    grad_state: LinearAttentionState | None,
) -> Gradients:
    """The wanted gradients, read from the sums and from their gradient."""
    gradients = new_gradients(call, call.wanted_gradients)
    dim, value_dim, phi = call.feature_dim, call.value_dim, MAPS[call.feature_map]
    if gradients.query is not None:
        assert output.state is not None, "a non-causal call keeps the sums over its keys"
        _read(
            call, grad_out, 0, call.query, phi, *output.state, gradients.query,
            (1, value_dim), h=h, normalizer=output.normalizer,
        )  # fmt: skip
    sums = gradients.initial_state
    if sums is None:
        if gradients.key is None and gradients.value is None:
            return gradients
        shape = (call.num_sequences, call.kv_heads, dim)
        sums = LinearAttentionState(h.new_empty(*shape, value_dim), h.new_empty(shape))
    _add_up(call, sums, call.query, grad_out, grad_state, h=h, normalizer=output.normalizer)
    if gradients.key is not None:
        _read(call, call.value, 0, call.key, phi, *sums, gradients.key, (1, value_dim))
    if gradients.value is not None:
        _read(call, call.key, phi, call.value, 0, sums.s, None, gradients.value, (value_dim, 1))
    return gradients


def step(call: StepCall, out: Tensor) -> None:
    """Updates the state and writes the output."""
    query, key, value, z = (
        x.unsqueeze(2) for x in (call.query, call.key, call.value, call.state.z)
    )
    indices, decay = call.state_indices, call.log_decay
    block = min(32, power_of_two(call.value_dim))
    _launch(
        reads.step, call.batch * call.kv_heads,
        *_tensors(query, key, value, call.state.s, z), out,
        None if indices is None else indices.to(torch.int64).contiguous(),
        None if decay is None else decay.contiguous(),
        call.heads, call.groups, call.feature_dim, call.value_dim, z.shape[0], call.eps,
        MAP=MAPS[call.feature_map], NORMALIZE=call.normalize,
        WIDTH=power_of_two(call.feature_dim), BLOCK=block, num_warps=4,
    )  # fmt: skip


def _add_up(
    call: AttentionCall,
    into: LinearAttentionState,
    a: Tensor,
    c: Tensor,
    start: LinearAttentionState | None,
    *,
    h: Tensor | None = None,
    normalizer: Tensor | None = None,
) -> None:
    """into = start + the sums of phi(a) c^T and phi(a); of queries, if there is an h, else keys."""
    blocks = _options(call, call.feature_dim, call.value_dim)[1]
    segments = _parts(call, a.shape[2], 64, call.num_sequences * call.kv_heads * blocks)
    sums, _ = _sum_segments(call, segments, a, c, h=h, normalizer=normalizer)
    for target, parts, first in zip(into, sums, _pair(start), strict=True):
        torch.sum(parts, 0, out=target)
        if first is not None:
            target.add_(first)


def _before_keys(call: AttentionCall, segments: int) -> LinearAttentionState | None:
    """S and z before each segment."""
    return _scan(call, segments, call.initial_state, call.key, call.value)


def _scan(
    call: AttentionCall,
    segments: int,
    first: LinearAttentionState | None,
    a: Tensor,
    c: Tensor,
    *,
    h: Tensor | None = None,
    normalizer: Tensor | None = None,
) -> LinearAttentionState | None:
    """The states that segments begin with, (segments, sequences, H_kv, F, M), the first `first`.

    S and z from a = keys and c = values; with an h their gradients, from behind, from a = queries.
    """
    if segments == 1:
        return first
    states, factors = _sum_segments(call, segments, a, c, h=h, normalizer=normalizer)
    rows = call.num_sequences * call.kv_heads
    for x, before in zip(states, _pair(first), strict=True):
        numbers = x[0].numel()
        _launch(
            causal.scan, -(-numbers // _SCANNED), x, before, factors, numbers // max(1, rows), rows,
            segments, BACKWARDS=h is not None, BLOCK=_SCANNED,
        )  # fmt: skip
    return states


def _sum_segments(
    call: AttentionCall,
    segments: int,
    a: Tensor,
    c: Tensor,
    *,
    h: Tensor | None,
    normalizer: Tensor | None,
) -> tuple[LinearAttentionState, Tensor | None]:
    """The sums of phi(a) c^T and phi(a) over each segment, and by how much each decays.

    The sums are of queries, if there is an h, else of keys.
    """
    options, blocks = _options(call, call.feature_dim, call.value_dim)
    groups = 1 if h is None else call.groups
    shape = (segments, call.num_sequences, call.kv_heads)
    new = functools.partial(torch.empty, device=a.device, dtype=torch.float32)
    sums = LinearAttentionState(
        new(*shape, call.feature_dim, call.value_dim), new(*shape, call.feature_dim)
    )
    factors = None if call.log_decay is None else new(shape)
    of_keys = call.is_causal or h is None  # a query and a key at each position
    places = _places(call) if of_keys else (None, call.cu_seqlens, None)
    _launch(
        reads.add_up, math.prod(shape) * blocks, *_tensors(a, c), normalizer, h, *sums, factors,
        *places, call.log_decay, a.shape[1], groups, a.shape[2], call.feature_dim, call.value_dim,
        segments, call.num_sequences, MAP=MAPS[call.feature_map],
        SCALED=h is not None and call.normalize,
        COMPENSATE=a.shape[2] * groups > LONG * segments, **options,
    )  # fmt: skip
    return sums, factors


def _read(
    call: AttentionCall,
    a: Tensor,
    map_a: int,
    x: Tensor,
    map_x: int,
    s: Tensor,
    z: Tensor | None,
    into: Tensor,
    strides: tuple[int, int],
    *,
    h: Tensor | None = None,
    normalizer: Tensor | None = None,
) -> None:
    """One gradient by `reads.read_gradient`; of queries, if there is an h, else of keys."""
    heads, length, width = into.shape[1:]
    rows = call.num_sequences * heads
    options, blocks = _options(call, a.shape[3], width, cancels=h is not None)
    parts = _parts(call, length, options["CHUNK"], rows * blocks)
    places, groups = (
        (_places(call), 1) if h is None else ((None, call.cu_seqlens, None), call.groups)
    )
    _launch(
        reads.read_gradient, rows * blocks * parts, *_tensors(a, x), s, z, h, normalizer, into,
        *places, heads, groups, length, a.shape[3], width, *strides, parts,
        MAP_A=map_a, MAP=map_x, SCALED=h is not None and call.normalize, **options,
    )  # fmt: skip


def _launch(kernel: Any, programs: int, *arguments: Any, **options: Any) -> None:
    if programs:
        kernel[(programs,)](*arguments, **options)


def _options(
    call: AttentionCall, summed: int, columns: int, *, heavy: bool = False, cancels: bool = False
) -> tuple[dict[str, Any], int]:
    """The keyword arguments of a kernel, and the blocks of columns.

    For `heavy` see `choose`, for `cancels` see `precision`.
    """
    dtypes = (call.query_dtype, call.value_dtype)
    dtype = dtypes[0] if dtypes[0] == dtypes[1] else torch.float32
    half = dtype == torch.bfloat16
    chosen = choose(
        summed,
        columns,
        half=half,
        decay=call.log_decay is not None,
        heavy=heavy,
        capability=device.capability(call.device),
    )
    options = {
        "CHUNK": chosen.chunk, "WIDTH": power_of_two(summed), "BLOCK": chosen.block,
        "DOT": LANGUAGE_DTYPES[half],
        "PRECISION": device.precision(call.device, dtype, cancels=cancels),
        "num_warps": chosen.num_warps, "num_stages": chosen.num_stages,
    }  # fmt: skip
    return options, max(1, -(-columns // chosen.block))


def _new_states(call: AttentionCall, chunk: int, dot: Any) -> tuple[Tensor, Tensor]:
    """Memory for S and z before every chunk, S as products take it.

    The chunks of a sequence follow one another. Those of sequence i begin at number i + p // chunk,
    where p positions stand before the sequence.
    """
    chunks = call.batch * call.key_length // chunk + call.num_sequences
    shape = (chunks, call.kv_heads, call.feature_dim)
    dtype = torch.bfloat16 if dot == LANGUAGE_DTYPES[True] else torch.float32
    s = call.value.new_empty(*shape, call.value_dim, dtype=dtype)
    return s, call.value.new_empty(shape, dtype=torch.float32)


def _parts(call: AttentionCall, length: int, chunk: int, programs: int) -> int:
    """Programs that share the chunks of a sequence, until they fill the GPU twice."""
    many = 2 * device.programs_at_once(call.device)
    return max(1, min(-(-length // chunk), many // max(1, programs)))


def _segments(call: AttentionCall) -> int:
    """Pieces that each sequence of a causal call is cut into, until they fill the GPU."""
    blocks = _options(call, call.feature_dim, call.value_dim)[1]
    programs = call.num_sequences * call.kv_heads * blocks
    length = call.batch * call.key_length // max(1, call.num_sequences)
    most = device.programs_at_once(call.device) // max(1, programs)
    return max(1, min(length // SHORTEST, most))


def _tensors(*tensors: Tensor) -> tuple[Any, ...]:
    """Each tensor with its strides."""
    return tuple(x for tensor in tensors for x in (tensor, tensor.stride()))


def _places(call: AttentionCall) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """What says which keys exist."""
    # Triton orders the terms of a product by the narrowest numbers that its operands depend on. A
    # mask in bytes would thus round sums differently from a call without a mask.
    mask = call.attn_mask
    return call.key_lengths, call.cu_seqlens, None if mask is None else mask.to(torch.int32)


def _pair(state: LinearAttentionState | None) -> tuple[Tensor | None, Tensor | None]:
    return (None, None) if state is None else (state.s, state.z)


def _sizes(call: AttentionCall, length: int | None = None) -> tuple[int, ...]:
    positions = call.key_length if length is None else length
    return call.heads, call.groups, positions, call.feature_dim, call.value_dim
