"""What the kernels share: tiles loaded with their feature map, keys that exist, factors of decay.

Layouts are those of the operator, (B, H, N, D) with any strides. Tiles are (positions, columns) and
are zero outside of the tensor, and where a key does not exist. Everything but the operands of dot
products is float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

ELU = tl.constexpr(1)
RELU = tl.constexpr(2)


@triton.jit
def span(cu_seqlens, sequence, length):
    """The row of the batch in which a sequence stands, and where it starts and stops."""
    row, start, stop = sequence, sequence * 0, sequence * 0 + length
    if cu_seqlens is not None:
        row = sequence * 0
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence), 0), length)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence + 1), 0), length)
    return row, start, stop


@triton.jit
def existing(positions, stop, row, length, key_lengths, mask):
    """Which of the positions have a key."""
    exists = positions < stop
    if key_lengths is not None:
        exists = exists & (positions < tl.load(key_lengths + row))
    if mask is not None:
        exists = exists & (tl.load(mask + row * length + positions, mask=exists, other=0) != 0)
    return exists


@triton.jit
def load_tile(x, base, strides, positions, present, columns, width, MAP: tl.constexpr):
    """phi of rows of a (B, H, N, D) tensor in float32; zero where a row is not present."""
    inside = present[:, None] & (columns < width)[None, :]
    places = positions[:, None] * strides[2] + columns[None, :] * strides[3]
    tile = tl.load(x + base + places, mask=inside, other=0).to(tl.float32)
    if MAP == ELU:
        tile = tl.where(tile > 0, tile + 1, tl.exp(tl.where(tile > 0, 0.0, tile)))
    elif MAP == RELU:
        tile = tl.where(tile < 0, 0.0, tile)
    return tl.where(inside, tile, 0.0)


@triton.jit
def load_derivative(x, base, strides, positions, present, columns, width, MAP: tl.constexpr):
    """phi' at rows of a (B, H, N, D) tensor; zero where a row is not present."""
    tile = load_tile(x, base, strides, positions, present, columns, width, 0)
    if MAP == ELU:
        tile = tl.exp(tl.where(tile > 0, 0.0, tile))
    elif MAP == RELU:
        tile = (tile > 0).to(tl.float32)
    else:
        tile = tile * 0.0 + 1.0
    return tl.where(present[:, None], tile, 0.0)


@triton.jit
def scale_rows(tile, normalizer, rows, present, NORMALIZE: tl.constexpr):
    """Upstream gradients of outputs as those of numerators: divided by the normalizer."""
    if NORMALIZE:
        tile = tile / tl.load(normalizer + rows, mask=present, other=1.0)[:, None]
    return tile


@triton.jit
def store_tile(out, base, tile, positions, present, columns, width):
    """Writes rows of a contiguous tensor whose rows have `width` numbers."""
    places = positions[:, None] * width + columns[None, :]
    inside = present[:, None] & (columns < width)[None, :]
    tl.store(out + base + places, tile.to(out.dtype.element_ty), mask=inside)


@triton.jit
def load_matrix(x, base, rows, row_width, row_stride, columns, column_width, column_stride):
    """Part of a matrix in float32; zeros where there is no matrix, and outside of it."""
    inside = (rows < row_width)[:, None] & (columns < column_width)[None, :]
    tile = tl.zeros([rows.shape[0], columns.shape[0]], tl.float32)
    if x is not None:
        places = base + rows[:, None] * row_stride + columns[None, :] * column_stride
        tile = tl.load(x + places, mask=inside, other=0).to(tl.float32)
    return tile


@triton.jit
def store_matrix(x, base, tile, rows, row_width, row_stride, columns, column_width, column_stride):
    """The inverse of `load_matrix`."""
    inside = (rows < row_width)[:, None] & (columns < column_width)[None, :]
    if x is not None:
        places = base + rows[:, None] * row_stride + columns[None, :] * column_stride
        tl.store(x + places, tile, mask=inside)


@triton.jit
def load_vector(x, base, columns, width):
    """Part of a vector in float32; zeros where there is no vector, and outside of it."""
    vector = tl.zeros([columns.shape[0]], tl.float32)
    if x is not None:
        vector = tl.load(x + base + columns, mask=columns < width, other=0).to(tl.float32)
    return vector


@triton.jit
def store_vector(x, base, vector, columns, width):
    """The inverse of `load_vector`."""
    if x is not None:
        tl.store(x + base + columns, vector, mask=columns < width)


@triton.jit
def decay_between(decay, base, positions, exists, CHUNK: tl.constexpr):
    """(C, C): exp of the decay's sum over j < m <= i, at [i, j]; 1 for j >= i.

    Also the decay from the start of the chunk to each position, from each position to the end of
    the chunk, and across it. No factor is the exp of a difference, which could be inf - inf.
    """
    place = tl.arange(0, CHUNK)
    g = tl.load(decay + base + positions, mask=exists, other=0.0).to(tl.float32)
    later = tl.where(place[:, None] > place[None, :], g[:, None], 0.0)
    between = tl.exp(tl.cumsum(later, 0))
    to_end = tl.sum(tl.where(place[:, None] == CHUNK - 1, between, 0.0), 0)
    return between, tl.exp(tl.cumsum(g, 0)), to_end, tl.exp(tl.sum(g, 0))


@triton.jit
def dot(left, right, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """The matrix product, its operands rounded to DOT, its sums in float32."""
    if PRECISION == "rounded":  # for the interpreter, whose product knows no bfloat16
        return tl.dot(left.to(DOT).to(tl.float32), right.to(DOT).to(tl.float32))
    else:
        return tl.dot(left.to(DOT), right.to(DOT), input_precision=PRECISION)
