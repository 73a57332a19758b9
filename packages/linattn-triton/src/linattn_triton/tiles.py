"""What the kernels share: their places in a call, tiles with their feature map, products.

Layouts are those of the operator, (B, H, N, D) with any strides. Tiles are (positions, columns) and
are zero outside of the tensor, and where a key does not exist. Everything but the operands of dot
products is float32.
"""

from __future__ import annotations

import triton
import triton.language as tl

ELU = tl.constexpr(1)
RELU = tl.constexpr(2)
CUTS = ("segments", "parts", "sequences", "rows", "slots")
"""Arguments that change with the batch: Triton is not to compile again for 1 or multiples of 16."""


@triton.jit
def find_work(blocks, parts, heads, cu_seqlens, length):
    """Which block of columns, part, head and sequence a program has.

    Also the row of the batch in which the sequence stands, and where it starts and stops there.
    """
    block = tl.program_id(0) % blocks
    part = tl.program_id(0) // blocks % parts
    head = (tl.program_id(0) // blocks // parts % heads).to(tl.int64)
    sequence = (tl.program_id(0) // blocks // parts // heads).to(tl.int64)
    row, start, stop = sequence, sequence * 0, sequence * 0 + length
    if cu_seqlens is not None:
        row = sequence * 0
        start = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence), 0), length)
        stop = tl.minimum(tl.maximum(tl.load(cu_seqlens + sequence + 1), 0), length)
    return block, part, head, sequence, row, start, stop


@triton.jit
def find_segment(start, stop, segment, segments):
    """Where a segment of a sequence starts and stops: whole chunks, of 64 positions or fewer."""
    step = tl.cdiv(tl.cdiv(stop - start, 64), segments) * 64
    first = tl.minimum(start + segment * step, stop)
    return first, tl.minimum(first + step, stop)


@triton.jit
def find_chunk(first, stop, row, length, key_lengths, mask, CHUNK: tl.constexpr):
    """The positions of a chunk, which of them are in the sequence, and which have a key."""
    positions = first + tl.arange(0, CHUNK).to(tl.int64)
    present = positions < stop
    exists = present
    if key_lengths is not None:
        exists = exists & (positions < tl.load(key_lengths + row))
    if mask is not None:
        exists = exists & (tl.load(mask + row * length + positions, mask=exists, other=0) != 0)
    return positions, present, exists


@triton.jit
def load_tile(x, strides, row, head, positions, present, columns, width, MAP: tl.constexpr):
    """phi of rows of a (B, H, N, D) tensor in float32; zero where a row is not present."""
    inside = present[:, None] & (columns < width)[None, :]
    base = row * strides[0] + head * strides[1]
    places = positions[:, None] * strides[2] + columns[None, :] * strides[3]
    tile = tl.load(x + base + places, mask=inside, other=0).to(tl.float32)
    if MAP == ELU:
        tile = tl.where(tile > 0, tile + 1, tl.exp(tl.where(tile > 0, 0.0, tile)))
    elif MAP == RELU:
        tile = tl.where(tile < 0, 0.0, tile)
    return tl.where(inside, tile, 0.0)


@triton.jit
def load_derivative(x, strides, row, head, positions, present, columns, width, MAP: tl.constexpr):
    """phi' at rows of a (B, H, N, D) tensor; zero where a row is not present."""
    tile = load_tile(x, strides, row, head, positions, present, columns, width, 0)
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
        tl.store(x + places, tile.to(x.dtype.element_ty), mask=inside)


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
def round_operand(tile, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """float32 numbers rounded to what products take: to DOT, or to TF32."""
    if PRECISION == "tf32":
        # Tensor cores drop the last 13 bits, which would make all sums too small.
        bits = tile.to(tl.int32, bitcast=True)
        rounded = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
        return tl.where(tile == tile, rounded, tile)
    else:
        return tile.to(DOT).to(tl.float32)


@triton.jit
def dot(left, right, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """The matrix product, its operands rounded to DOT or TF32, its sums in float32."""
    if PRECISION == "rounded" or PRECISION == "tf32":  # rounded: the interpreter has no bfloat16
        left, right = round_operand(left, DOT, PRECISION), round_operand(right, DOT, PRECISION)
        return tl.dot(left, right, input_precision="tf32")
    else:
        return tl.dot(left.to(DOT), right.to(DOT), input_precision=PRECISION)


@triton.jit
def dot_positions(a, b, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """a^T b, the sum over positions of what goes into a state.

    Where b has few columns, they are the rows of the product: it takes fewer registers, and see
    HOPPER_TABLE.
    """
    if a.shape[1] >= 64 and b.shape[1] < 64:
        return tl.trans(dot(tl.trans(b), a, DOT, PRECISION))
    else:
        return dot(tl.trans(a), b, DOT, PRECISION)


@triton.jit
def dot_exactly(a, b, DOT: tl.constexpr, PRECISION: tl.constexpr):
    """`dot_positions` of float32 numbers, in parts that lose no bit, and numbers in DOT or TF32."""
    if PRECISION == "bf16x3":
        return dot_positions(a, b, DOT, "bf16x6")
    elif DOT == tl.bfloat16 or PRECISION == "tf32":  # noqa: SIM300
        rest = a - round_operand(a, DOT, PRECISION)
        low = rest - round_operand(rest, DOT, PRECISION)
        small = dot_positions(low, b, DOT, PRECISION) + dot_positions(rest, b, DOT, PRECISION)
        return small + dot_positions(a, b, DOT, PRECISION)
    else:
        return dot_positions(a, b, DOT, PRECISION)


@triton.jit
def add(total, lost, term, COMPENSATE: tl.constexpr):
    """total + term; if COMPENSATE, also by how much all sums so far were rounded up (Kahan)."""
    if COMPENSATE:
        term = term - lost
        new = total + term
        return new, (new - total) - term
    else:
        return total + term, lost


@triton.jit
def zero_above(products):
    """The lower triangle of a chunk's products: no query sees a later key."""
    place = tl.arange(0, products.shape[0])
    return tl.where(place[:, None] >= place[None, :], products, 0.0)
