"""Causal kernels: one program walks a segment of one head of a sequence, for a block of columns.

With phi applied to queries and keys, S and z the sums over the chunks before, and w the lower
triangle of the chunk's products q k^T, a chunk of the forward pass computes

    out = (w v + q S) / n,   n = w 1 + q z + eps,   then S += k^T v,  z += k^T 1

The gradients, with G the upstream gradient, g = G / n and h that of the normalizer, are sweeps of
the same form: for queries forwards with S and z, for keys and values backwards with
R = sum q g^T and r = sum h q over the positions behind (see linattn_core.reference_backend.causal).
Each program keeps its columns of the state in registers, so what is split over programs is the
columns of values, or for the gradients of queries and keys those of the features. Where heads are
few, sequences are cut into segments, too: `reads.add_up` sums each, and `scan` turns the sums into
the states that the segments begin with, (segments, sequences, H_kv, F, M). The gradient of
`log_decay` comes with these two, as the sum of what each block of features adds; S and z before
each chunk are kept for it from the first sweep to the second.
"""

from __future__ import annotations

import triton
import triton.language as tl

from linattn_triton.decay import decay_between, sum_across_here, sum_from_here, sum_until_here
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
    zero_above,
)


@triton.jit(do_not_specialize=CUTS)
def scan(
    states, first, factors, numbers, rows, segments,
    BACKWARDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Turns the sums of segments into what each begins with: `first`, and the sums of those before.

    Each segment decays what is before it by its factor.
    """
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < rows * numbers
    total = load_vector(first, 0, at, rows * numbers)
    lost = tl.zeros_like(total)
    for i in range(0, segments):
        segment = segments - 1 - i if BACKWARDS else i
        places = states + segment * rows * numbers + at
        own = tl.load(places, mask=inside, other=0.0)
        tl.store(places, total, mask=inside)
        if factors is not None:
            factor = tl.load(factors + segment * rows + at // numbers, mask=inside, other=0.0)
            total *= factor
            lost *= factor
        total, lost = add(total, lost, own, True)


@triton.jit(do_not_specialize=CUTS)
def forward(
    q, q_strides, k, k_strides, v, v_strides, out, normalizer,
    key_lengths, cu_seqlens, mask, decay, initial_s, initial_z, last_s, last_z,
    heads, groups, length, dim, value_dim, segments, sequences, eps,
    MAP: tl.constexpr, NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr, COMPENSATE: tl.constexpr,
):  # fmt: skip
    """Output, normalizer (with eps) and last state, for BLOCK columns of the values."""
    blocks = tl.maximum(tl.cdiv(value_dim, BLOCK), 1)
    block, segment, head, sequence, row, start, stop = find_work(
        blocks, segments, heads, cu_seqlens, length
    )
    start, stop = find_segment(start, stop, segment, segments)
    kv_heads, kv_head = heads // groups, head // groups
    features = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    of_out, of_kv = (row * heads + head) * length, (row * kv_heads + kv_head) * length
    of_z = ((segment * sequences + sequence) * kv_heads + kv_head) * dim

    s = load_matrix(initial_s, of_z * value_dim, features, dim, value_dim, columns, value_dim, 1)
    z = load_vector(initial_z, of_z, features, dim)
    lost_s, lost_z = tl.zeros_like(s), tl.zeros_like(z)
    for first in range(start, stop, CHUNK):
        positions, present, exists = find_chunk(first, stop, row, length, key_lengths, mask, CHUNK)
        tile_q = load_tile(q, q_strides, row, head, positions, present, features, dim, MAP)
        tile_k = load_tile(k, k_strides, row, kv_head, positions, exists, features, dim, MAP)
        tile_v = load_tile(v, v_strides, row, kv_head, positions, exists, columns, value_dim, 0)
        weights = zero_above(dot(tile_q, tl.trans(tile_k), DOT, PRECISION))
        across = 1.0
        if decay is not None:
            between, from_start, to_end, across = decay_between(
                decay, of_kv, positions, exists, CHUNK
            )
            weights *= between
            tile_q *= from_start[:, None]
            tile_k *= to_end[:, None]
        else:
            tile_k = round_operand(tile_k, DOT, PRECISION)
        tile_q = round_operand(tile_q, DOT, PRECISION)
        weights = round_operand(weights, DOT, PRECISION)
        total = tl.sum(weights, 1) + tl.sum(tile_q * z[None, :], 1) + eps
        tile = dot(weights, tile_v, DOT, PRECISION) + dot(tile_q, s, DOT, PRECISION)
        if NORMALIZE:
            tile = tile / tl.where(present, total, 1.0)[:, None]
        store_tile(out, of_out * value_dim, tile, positions, present, columns, value_dim)
        tl.store(normalizer + of_out + positions, total, mask=present & (block == 0))
        if decay is not None:  # the state has the sums of what is not rounded
            term = dot_exactly(tile_k, tile_v, DOT, PRECISION)
        else:
            term = dot_positions(tile_k, tile_v, DOT, PRECISION)
        s, lost_s = add(s * across, lost_s * across, term, COMPENSATE)
        z, lost_z = add(z * across, lost_z * across, tl.sum(tile_k, 0), COMPENSATE)
    if (head % groups == 0) & (segment == segments - 1):
        of_z = (sequence * kv_heads + kv_head) * dim
        store_matrix(last_s, of_z * value_dim, s, features, dim, value_dim, columns, value_dim, 1)
        if block == 0:
            store_vector(last_z, of_z, z, features, dim)


@triton.jit(do_not_specialize=CUTS)
def query_gradient(
    q, q_strides, k, k_strides, v, v_strides, grad_out, g_strides, normalizer, h, grad_query,
    grad_decay, before_s, before_z, key_lengths, cu_seqlens, mask, decay, initial_s, initial_z,
    heads, groups, length, dim, value_dim, segments, sequences,
    MAP: tl.constexpr, NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d phi(q) = S g + h z, then dq, for BLOCK columns of the features.

    With grad_decay (B, H, blocks, N): what queries read from before their chunk, as they add to it,
    and S and z before each chunk, in before_s and before_z.
    """
    blocks = tl.maximum(tl.cdiv(dim, BLOCK), 1)
    block, segment, head, sequence, row, start, stop = find_work(
        blocks, segments, heads, cu_seqlens, length
    )
    chunk = (row * length + start) // CHUNK + sequence
    begin, stop = find_segment(start, stop, segment, segments)
    chunk += (begin - start) // CHUNK
    kv_heads, kv_head = heads // groups, head // groups
    values = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    of_out, of_kv = (row * heads + head) * length, (row * kv_heads + kv_head) * length
    of_z = ((segment * sequences + sequence) * kv_heads + kv_head) * dim

    s = load_matrix(
        initial_s, of_z * value_dim, values, value_dim, 1, columns, dim, value_dim
    )  # (M, F)
    z = load_vector(initial_z, of_z, columns, dim)
    for first in range(begin, stop, CHUNK):
        positions, present, exists = find_chunk(first, stop, row, length, key_lengths, mask, CHUNK)
        g = load_tile(grad_out, g_strides, row, head, positions, present, values, value_dim, 0)
        g = scale_rows(g, normalizer, of_out + positions, present, NORMALIZE)
        tile_h = tl.load(h + of_out + positions, mask=present, other=0.0)
        tile_k = load_tile(k, k_strides, row, kv_head, positions, exists, columns, dim, MAP)
        tile_v = load_tile(v, v_strides, row, kv_head, positions, exists, values, value_dim, 0)
        weights = zero_above(dot(g, tl.trans(tile_v), DOT, PRECISION) + tile_h[:, None])
        across = 1.0
        if decay is not None:
            between, from_start, to_end, across = decay_between(
                decay, of_kv, positions, exists, CHUNK
            )
            weights *= between
            g *= from_start[:, None]
            tile_h *= from_start
        tile = dot(g, s, DOT, PRECISION) + tile_h[:, None] * z[None, :]
        if grad_decay is not None:
            tile_q = load_tile(q, q_strides, row, head, positions, present, columns, dim, MAP)
            read = tl.where(exists, sum_from_here(tl.sum(tile_q * tile, 1)), 0.0)
            of_decay = of_out * blocks + block * length
            tl.store(grad_decay + of_decay + positions, read, mask=present)
            if head % groups == 0:
                of_before = (chunk * kv_heads + kv_head) * dim
                store_matrix(
                    before_s, of_before * value_dim, s, values, value_dim, 1, columns, dim,
                    value_dim,
                )  # fmt: skip
                store_vector(before_z, of_before, z, columns, dim)
            chunk += 1
        if grad_query is not None:
            tile += dot(weights, tile_k, DOT, PRECISION)
            tile *= load_derivative(q, q_strides, row, head, positions, present, columns, dim, MAP)
            store_tile(grad_query, of_out * dim, tile, positions, present, columns, dim)
        if decay is not None:
            tile_k *= to_end[:, None]
        s = s * across + dot_positions(tile_v, tile_k, DOT, PRECISION)
        z = z * across + tl.sum(tile_k, 0)


@triton.jit(do_not_specialize=CUTS)
def key_gradient(
    q, q_strides, k, k_strides, v, v_strides, grad_out, g_strides, normalizer, h, grad_key,
    grad_decay, before_s, before_z,
    key_lengths, cu_seqlens, mask, decay, grad_last_s, grad_last_z, grad_initial_s, grad_initial_z,
    heads, groups, length, dim, value_dim, segments, sequences,
    MAP: tl.constexpr, NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """d phi(k) = R v + r, then dk, for BLOCK columns of the features; R and r at the start.

    With grad_decay (B, H_kv, blocks, L): all but what `query_gradient` adds to it.
    """
    blocks = tl.maximum(tl.cdiv(dim, BLOCK), 1)
    kv_heads = heads // groups
    block, segment, kv_head, sequence, row, start, stop = find_work(
        blocks, segments, kv_heads, cu_seqlens, length
    )
    of_first = (row * length + start) // CHUNK + sequence
    begin, stop = find_segment(start, stop, segment, segments)
    of_first += (begin - start) // CHUNK
    values = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    of_kv = (row * kv_heads + kv_head) * length
    of_z = ((segment * sequences + sequence) * kv_heads + kv_head) * dim

    s = load_matrix(
        grad_last_s, of_z * value_dim, values, value_dim, 1, columns, dim, value_dim
    )  # (M, F)
    z = load_vector(grad_last_z, of_z, columns, dim)
    chunks = tl.cdiv(stop - begin, CHUNK)
    for done in range(0, chunks):
        chunk = chunks - 1 - done
        positions, present, exists = find_chunk(
            begin + chunk * CHUNK, stop, row, length, key_lengths, mask, CHUNK
        )
        tile_v = load_tile(v, v_strides, row, kv_head, positions, exists, values, value_dim, 0)
        tile = dot(tile_v, s, DOT, PRECISION) + z[None, :]
        if decay is not None:
            between, from_start, to_end, across = decay_between(
                decay, of_kv, positions, exists, CHUNK
            )
            tile *= to_end[:, None]
            s *= across
            z *= across
        if grad_decay is not None:
            tile_k = load_tile(k, k_strides, row, kv_head, positions, exists, columns, dim, MAP)
            written = sum_until_here(tl.sum(tile_k * tile, 1))
            of_before = ((of_first + chunk) * kv_heads + kv_head) * dim
            before = load_matrix(
                before_s, of_before * value_dim, values, value_dim, 1, columns, dim, value_dim
            )
            through = tl.sum(before * s, 0) + load_vector(before_z, of_before, columns, dim) * z
            written += tl.sum(through, 0)
        for member in range(0, groups):
            head = kv_head * groups + member
            rows = (row * heads + head) * length + positions
            g = load_tile(grad_out, g_strides, row, head, positions, present, values, value_dim, 0)
            g = scale_rows(g, normalizer, rows, present, NORMALIZE)
            tile_h = tl.load(h + rows, mask=present, other=0.0)
            tile_q = load_tile(q, q_strides, row, head, positions, present, columns, dim, MAP)
            weights = zero_above(dot(g, tl.trans(tile_v), DOT, PRECISION) + tile_h[:, None])
            if decay is not None:
                weights *= between
            if grad_decay is not None:
                scores = dot(tile_q, tl.trans(tile_k), DOT, PRECISION)
                written += sum_across_here(weights * scores)
            tile += dot(tl.trans(weights), tile_q, DOT, PRECISION)
            if decay is not None:
                tile_q *= from_start[:, None]
            s += dot_positions(g, tile_q, DOT, PRECISION)
            z += tl.sum(tile_q * tile_h[:, None], 0)
        if grad_decay is not None:
            of_decay = of_kv * blocks + block * length
            written = tl.where(exists, written, 0.0)
            tl.store(grad_decay + of_decay + positions, written, mask=present)
        if grad_key is not None:
            tile *= load_derivative(
                k, k_strides, row, kv_head, positions, exists, columns, dim, MAP
            )
            store_tile(grad_key, of_kv * dim, tile, positions, present, columns, dim)
    if segment == 0:
        store_matrix(
            grad_initial_s, of_z * value_dim, s, values, value_dim, 1, columns, dim, value_dim
        )
        store_vector(grad_initial_z, of_z, z, columns, dim)


@triton.jit(do_not_specialize=CUTS)
def value_gradient(
    q, q_strides, k, k_strides, grad_out, g_strides, normalizer, grad_value,
    key_lengths, cu_seqlens, mask, decay, grad_last_s,
    heads, groups, length, dim, value_dim, segments, sequences,
    MAP: tl.constexpr, NORMALIZE: tl.constexpr, CHUNK: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, DOT: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """dv = R^T phi(k), for BLOCK columns of the values."""
    blocks = tl.maximum(tl.cdiv(value_dim, BLOCK), 1)
    kv_heads = heads // groups
    block, segment, kv_head, sequence, row, start, stop = find_work(
        blocks, segments, kv_heads, cu_seqlens, length
    )
    start, stop = find_segment(start, stop, segment, segments)
    features = tl.arange(0, WIDTH).to(tl.int64)
    columns = (block * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    of_kv = (row * kv_heads + kv_head) * length
    of_s = ((segment * sequences + sequence) * kv_heads + kv_head) * dim * value_dim

    s = load_matrix(grad_last_s, of_s, features, dim, value_dim, columns, value_dim, 1)
    chunks = tl.cdiv(stop - start, CHUNK)
    for done in range(0, chunks):
        positions, present, exists = find_chunk(
            start + (chunks - 1 - done) * CHUNK, stop, row, length, key_lengths, mask, CHUNK
        )
        tile_k = load_tile(k, k_strides, row, kv_head, positions, exists, features, dim, MAP)
        tile = dot(tile_k, s, DOT, PRECISION)
        if decay is not None:
            between, from_start, to_end, across = decay_between(
                decay, of_kv, positions, exists, CHUNK
            )
            tile *= to_end[:, None]
            s *= across
        for member in range(0, groups):
            head = kv_head * groups + member
            rows = (row * heads + head) * length + positions
            g = load_tile(grad_out, g_strides, row, head, positions, present, columns, value_dim, 0)
            g = scale_rows(g, normalizer, rows, present, NORMALIZE)
            tile_q = load_tile(q, q_strides, row, head, positions, present, features, dim, MAP)
            weights = zero_above(dot(tile_q, tl.trans(tile_k), DOT, PRECISION))
            if decay is not None:
                weights *= between
                tile_q *= from_start[:, None]
            tile += dot(tl.trans(weights), g, DOT, PRECISION)
            s += dot_positions(tile_q, g, DOT, PRECISION)
        tile = tl.where(exists[:, None], tile, 0.0)
        store_tile(grad_value, of_kv * value_dim, tile, positions, present, columns, value_dim)
