"""Kernels without order: sums over keys, reads of them, the normalizer's gradient, the step.

The non-causal operator is two of these, S = sum phi(k) v^T and out = phi(q)^T S / n, and so are its
gradients: R = sum phi(q) g^T and r = sum h phi(q), then dq, dk and dv as reads of S or R.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattn_triton.decay import decay_between
from linattn_triton.tiles import (
    CUTS,
    add,
    dot,
    dot_exactly,
    dot_positions,
    find_chunk,
    find_segment,
    find_work,
    load_derivative,
    load_matrix,
    load_tile,
    load_vector,
    round_operand,
    scale_rows,
    store_matrix,
    store_tile,
    store_vector,
)


@triton.jit(do_not_specialize=CUTS)
def add_up(
    a, a_strides, c, c_strides, normalizer, h, s, z, factors, key_lengths, cu_seqlens, mask, decay,
    heads, groups, length, dim, value_dim, segments, sequences,
    MAP: tl.constexpr, SCALED: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, COMPENSATE: tl.constexpr,
):  # fmt: skip
    """A segment's sums of phi(a) c^T and of phi(a), or of h phi(a), over each group of heads.

    They are of queries if there is an h, else of keys. With decay, keys decay until the end of the
    segment, and queries count what is left of its start; `factors` has the decay across it.
    """
    blocks = tl.maximum(tl.cdiv(value_dim, BLOCK), 1)
    kv_heads = heads // groups
    block, segment, kv_head, sequence, row, start, stop = find_work(
        blocks, segments, kv_heads, cu_seqlens, length
    )
    start, stop = find_segment(start, stop, segment, segments)
    features = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    total = tl.zeros([WIDTH, BLOCK], tl.float32)
    total_z = tl.zeros([WIDTH], tl.float32)
    lost, lost_z = tl.zeros_like(total), tl.zeros_like(total_z)
    factor = 1.0
    chunks = tl.cdiv(stop - start, CHUNK)
    for done in range(0, chunks):
        chunk = chunks - 1 - done if h is not None else done  # time runs backwards for gradients
        positions, present, exists = find_chunk(
            start + chunk * CHUNK, stop, row, length, key_lengths, mask, CHUNK
        )
        if decay is not None:
            _, from_start, to_end, across = decay_between(
                decay, (row * kv_heads + kv_head) * length, positions, exists, CHUNK
            )
            left = from_start if h is not None else to_end
            total *= across
            lost *= across
            total_z *= across
            lost_z *= across
            factor *= across
        if h is not None:
            exists = present
        for member in range(0, groups):
            head = kv_head * groups + member
            rows = (row * heads + head) * length + positions
            tile_a = load_tile(a, a_strides, row, head, positions, exists, features, dim, MAP)
            tile_c = load_tile(c, c_strides, row, head, positions, exists, columns, value_dim, 0)
            tile_c = scale_rows(tile_c, normalizer, rows, exists, SCALED)
            if decay is not None:
                tile_a *= left[:, None]
                term = dot_exactly(tile_a, tile_c, DOT, PRECISION)
            else:
                tile_a = round_operand(tile_a, DOT, PRECISION)
                term = dot_positions(tile_a, tile_c, DOT, PRECISION)
            total, lost = add(total, lost, term, COMPENSATE)
            if h is not None:
                tile_a *= tl.load(h + rows, mask=exists, other=0.0)[:, None]
            total_z, lost_z = add(total_z, lost_z, tl.sum(tile_a, 0), COMPENSATE)
    of_head = (segment * sequences + sequence) * kv_heads + kv_head
    of_z = of_head * dim
    store_matrix(s, of_z * value_dim, total, features, dim, value_dim, columns, value_dim, 1)
    if block == 0:
        store_vector(z, of_z, total_z, features, dim)
        if decay is not None:
            tl.store(factors + of_head, factor)


@triton.jit(do_not_specialize=CUTS)
def read_output(
    q, q_strides, s, z, out, normalizer, cu_seqlens,
    heads, groups, length, dim, value_dim, eps, parts,
    MAP: tl.constexpr, NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out = phi(q)^T S / n and n = phi(q) . z + eps, for every chunk of a part."""
    blocks = tl.maximum(tl.cdiv(value_dim, BLOCK), 1)
    block, part, head, sequence, row, start, stop = find_work(
        blocks, parts, heads, cu_seqlens, length
    )
    features = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    of_out = (row * heads + head) * length
    of_z = (sequence * (heads // groups) + head // groups) * dim
    tile_s = load_matrix(s, of_z * value_dim, features, dim, value_dim, columns, value_dim, 1)
    tile_z = load_vector(z, of_z, features, dim)
    for first in range(start + part * CHUNK, stop, parts * CHUNK):
        positions, present, _ = find_chunk(first, stop, row, length, None, None, CHUNK)
        tile_q = load_tile(q, q_strides, row, head, positions, present, features, dim, MAP)
        tile_q = round_operand(tile_q, DOT, PRECISION)
        tile = dot(tile_q, tile_s, DOT, PRECISION)
        total = tl.sum(tile_q * tile_z[None, :], 1) + eps
        if NORMALIZE:
            tile = tile / tl.where(present, total, 1.0)[:, None]
        store_tile(out, of_out * value_dim, tile, positions, present, columns, value_dim)
        tl.store(normalizer + of_out + positions, total, mask=present & (block == 0))


@triton.jit(do_not_specialize=CUTS)
def read_gradient(
    a, a_strides, x, x_strides, s, z, h, normalizer, out, key_lengths, cu_seqlens, mask,
    heads, groups, length, inner, width, row_stride, column_stride, parts,
    MAP_A: tl.constexpr, MAP: tl.constexpr, SCALED: tl.constexpr, CHUNK: tl.constexpr,
    WIDTH: tl.constexpr, BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(a T + z) phi'(x), for T = S or R or its transpose; z is multiplied by h where there is h.

    dq: a = g, T = S^T, z; dk: a = v, T = R^T, r; dv: a = phi(k), T = R, without z and x.
    """
    blocks = tl.maximum(tl.cdiv(width, BLOCK), 1)
    block, part, head, sequence, row, start, stop = find_work(
        blocks, parts, heads, cu_seqlens, length
    )
    summed = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    of_out = (row * heads + head) * length
    of_state = sequence * (heads // groups) + head // groups
    tile_s = load_matrix(
        s, of_state * inner * width, summed, inner, row_stride, columns, width, column_stride
    )
    tile_z = load_vector(z, of_state * width, columns, width)
    for first in range(start + part * CHUNK, stop, parts * CHUNK):
        positions, present, exists = find_chunk(first, stop, row, length, key_lengths, mask, CHUNK)
        tile_a = load_tile(a, a_strides, row, head, positions, exists, summed, inner, MAP_A)
        tile_a = scale_rows(tile_a, normalizer, of_out + positions, exists, SCALED)
        tile = dot(tile_a, tile_s, DOT, PRECISION)
        if h is not None:
            tile_h = tl.load(h + of_out + positions, mask=exists, other=0.0)
            tile += tile_h[:, None] * tile_z[None, :]
        else:
            tile += tile_z[None, :]
        tile *= load_derivative(x, x_strides, row, head, positions, exists, columns, width, MAP)
        store_tile(out, of_out * width, tile, positions, present, columns, width)


@triton.jit
def normalizer_gradient(
    grad_out, g_strides, out, normalizer, grad_normalizer, h, heads, length, value_dim,
    NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """h = -(G / n) . out, plus the upstream gradient of the normalizer."""
    chunks = tl.cdiv(length, CHUNK)
    chunk = tl.program_id(0) % chunks
    head = (tl.program_id(0) // chunks).to(tl.int64)
    positions = chunk * CHUNK + tl.arange(0, CHUNK).to(tl.int64)
    present = positions < length
    rows = head * length + positions
    total = tl.zeros([CHUNK], tl.float32)
    if NORMALIZE:
        columns = tl.arange(0, WIDTH).to(tl.int64)
        g = load_tile(
            grad_out, g_strides, head // heads, head % heads, positions, present, columns,
            value_dim, 0,
        )  # fmt: skip
        g = scale_rows(g, normalizer, rows, present, NORMALIZE)
        inside = present[:, None] & (columns < value_dim)[None, :]
        places = rows[:, None] * value_dim + columns[None, :]
        total -= tl.sum(g * tl.load(out + places, mask=inside, other=0).to(tl.float32), 1)
    if grad_normalizer is not None:
        total += tl.load(grad_normalizer + rows, mask=present, other=0.0).to(tl.float32)
    tl.store(h + rows, total, mask=present)


@triton.jit(do_not_specialize=CUTS)
def step(
    q, q_strides, k, k_strides, v, v_strides, s, s_strides, z, z_strides, out, state_indices, decay,
    heads, groups, dim, value_dim, slots, eps,
    MAP: tl.constexpr, NORMALIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One position of one key/value head: its state updated in place, then read by its queries."""
    kv_heads = heads // groups
    row = (tl.program_id(0) // kv_heads).to(tl.int64)
    kv_head = (tl.program_id(0) % kv_heads).to(tl.int64)
    slot = row
    if state_indices is not None:
        slot = tl.load(state_indices + row)
    live = (slot >= 0) & (slot < slots)
    features = tl.arange(0, WIDTH).to(tl.int64)
    own = (features < dim) & live
    # A tile of one column: the maps act on tiles.
    one, zero = live & (tl.arange(0, 1) == 0), tl.zeros([1], tl.int64)
    tile_k = tl.sum(load_tile(k, k_strides, row, kv_head, zero, one, features, dim, MAP), 0)
    of_z = slot * z_strides[0] + kv_head * z_strides[1]
    tile_z = tl.load(z + of_z + features * z_strides[3], mask=own, other=0.0)
    factor = 1.0
    if decay is not None:
        factor = tl.exp(tl.load(decay + row * kv_heads + kv_head).to(tl.float32))
        tile_z *= factor
    tile_z += tile_k
    tl.store(z + of_z + features * z_strides[3], tile_z, mask=own)
    of_s = slot * s_strides[0] + kv_head * s_strides[1]
    for first in range(0, value_dim, BLOCK):
        columns = first + tl.arange(0, BLOCK).to(tl.int64)
        tile_v = load_tile(v, v_strides, row, kv_head, zero, one, columns, value_dim, 0)
        tile_v = tl.sum(tile_v, 0)
        inside = own[:, None] & (columns < value_dim)[None, :]
        places = of_s + features[:, None] * s_strides[2] + columns[None, :] * s_strides[3]
        tile_s = tl.load(s + places, mask=inside, other=0.0)
        tile_s = tile_s * factor + tile_k[:, None] * tile_v[None, :]
        tl.store(s + places, tile_s, mask=inside)
        for member in range(0, groups):
            head = kv_head * groups + member
            tile_q = load_tile(q, q_strides, row, head, zero, one, features, dim, MAP)
            tile_q = tl.sum(tile_q, 0)
            result = tl.sum(tile_q[:, None] * tile_s, 0)
            if NORMALIZE:
                result = result / (tl.sum(tile_q * tile_z, 0) + eps)
            result = tl.where(live, result, 0.0)
            places_out = out + (row * heads + head) * value_dim + columns
            tl.store(places_out, result.to(out.dtype.element_ty), mask=columns < value_dim)
