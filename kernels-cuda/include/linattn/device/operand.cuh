// An operand of a product: rows of a tensor on their way from global memory into a tile, a chunk at a time. They are
// copied asynchronously as they are, and turned into what the product wants (features, zeros where nothing is) on the
// way from there to the tile.
#pragma once

#include "linattn/device/feature_map.cuh"
#include "linattn/device/fragments.cuh"

namespace linattn {

struct Operand {
    Tensor4 tensor;
    Int width;       // numbers of a row; the tile's further columns are zero
    Dtype dtype;
    FeatureMap map;  // what is applied to each number
    bool divided;    // each row is divided by its normaliser
    bool of_keys;    // rows at or past the key length are zero
    bool vectors;    // rows begin at multiples of 16 bytes, and their numbers are neighbours
};

// Whether rows of this tensor may be copied 16 bytes at a time.
inline bool copies_vectors(const Tensor4& x, Dtype dtype) {
    const Int bytes = dtype == Dtype::float32 ? 4 : 2;
    return x.dim == 1 && reinterpret_cast<unsigned long long>(x.data) % 16 == 0 && x.batch * bytes % 16 == 0 &&
           x.head * bytes % 16 == 0 && x.position * bytes % 16 == 0;
}

// Where one sequence of one head lies: which rows of the tensors are its own.
struct Place {
    Int batch, head;
    Int start;      // position of its first row, of packed sequences
    Int rows;       // positions of queries
    Int keys;       // positions of keys
    Int live_keys;  // keys that exist
};

LINATTN_DEVICE const unsigned char* address(const Operand& operand, const Place& place, Int position, Int column) {
    const Tensor4& x = operand.tensor;
    const Int offset = place.batch * x.batch + place.head * x.head + (place.start + position) * x.position + column * x.dim;
    return static_cast<const unsigned char*>(x.data) + offset * bytes_of(operand.dtype);
}

// Where rows land in shared memory as they are, `pitch` of the operand's own numbers from row to row.
struct Staged {
    unsigned char* data;
    int pitch;
};

// Starts copying `rows` rows from `position` on, columns from `column` on, as they are. Rows from `count` on, and columns
// that the operand has not, are left zero. With one part all numbers have two bytes.
template <int rows, int width, int threads, int parts>
LINATTN_DEVICE void stage(const Staged& staged, const Operand& operand, const Place& place, Int position, Int column,
                          int count) {
    const int bytes = parts == 1 ? 2 : bytes_of(operand.dtype);
    const Int columns = operand.width - column;
    if (operand.vectors) {
        const int per_row = width * bytes / 16;
        const int there_in_row = static_cast<int>((columns < width ? columns : width) * bytes);
        const unsigned char* source = address(operand, place, position, column);
        const Int stride = operand.tensor.position * bytes;
        for (int i = thread_index(); i < rows * per_row; i += threads) {
            const int row = i / per_row, first = i % per_row * 16;
            const int there = row < count ? there_in_row - first : 0;
            copy16(staged.data + (row * staged.pitch * bytes + first),
                   there > 0 ? source + row * stride + first : static_cast<const unsigned char*>(operand.tensor.data),
                   there >= 16 ? 16 : there > 0 ? there : 0);
        }
        return;
    }
    for (int i = thread_index(); i < rows * width; i += threads) {
        const int row = i / width, at = i % width;
        const bool there = row < count && at < columns;
        const unsigned char* source = address(operand, place, position + row, column + at);
        if (bytes == 4) {
            reinterpret_cast<u32*>(staged.data)[row * staged.pitch + at] =
                there ? *reinterpret_cast<const u32*>(source) : 0u;
        } else {
            reinterpret_cast<u16*>(staged.data)[row * staged.pitch + at] =
                there ? *reinterpret_cast<const u16*>(source) : u16(0);
        }
    }
}

// What becomes of eight numbers of a row on their way to the tile.
template <int parts>
LINATTN_DEVICE void apply(float (&x)[8], const Operand& operand, float divisor) {
    if (operand.divided) {
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) x[k] /= divisor;
    } else if (operand.map == FeatureMap::elu) {
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) x[k] = feature<parts>(FeatureMap::elu, x[k]);
    } else if (operand.map == FeatureMap::relu) {
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) x[k] = feature<parts>(FeatureMap::relu, x[k]);
    }
}

// The staged rows as the product wants them, in the tile; with one part the tile is where they were staged, and rows that
// are to stay as they are need nothing. `live` rows exist; `divisors` are the rows' normalisers.
template <int rows, int width, int threads, int parts, int pitch>
LINATTN_DEVICE void prepare(Tile<parts, pitch> tile, const Staged& staged, const Operand& operand, Int column, int live,
                            const float* divisors) {
    if (parts == 1 && !operand.divided && operand.map == FeatureMap::identity) return;
    const Int columns = operand.width - column;
    for (int i = thread_index(); i < rows * width / 8; i += threads) {
        const int row = i / (width / 8), first = i % (width / 8) * 8;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (row < live && first < columns) {
            const Dtype dtype = parts == 1 ? Dtype::bfloat16 : operand.dtype;
            read_eight(x, staged.data + (row * staged.pitch + first) * bytes_of(dtype), dtype);
            apply<parts>(x, operand, operand.divided ? divisors[row] : 1.0f);
            if (first + 8 > columns) {
                LINATTN_UNROLL
                for (int k = 0; k < 8; ++k) x[k] = first + k < columns ? x[k] : 0.0f;
            }
        }
        tile.write_eight(row, first, x);
    }
}

}  // namespace linattn
