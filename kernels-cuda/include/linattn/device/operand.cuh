// An operand of a product: rows of a tensor on their way from global memory into a tile, a chunk at a time. They are
// copied asynchronously as they are, and turned into what the product wants (features, zeros where nothing is) on the
// way from there to the tile.
#pragma once

#include "linattn/device/feature_map.cuh"
#include "linattn/device/fragments.cuh"

namespace linattn {

struct Operand {
    Tensor4 tensor;
    Int width;  // numbers of a row; the tile's further columns are zero
    Dtype dtype;
    FeatureMap map;  // what is applied to each number
    bool divided;    // each row is divided by its normalizer
    int group;       // so many neighboring heads of the grid share one of its heads
    bool of_keys;    // rows at or past the key length are zero
    bool vectors;    // rows begin at multiples of 16 bytes, and their numbers are neighbors
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
    // Positions fit 32 bits; the caller refuses longer sequences.
    int start;      // position of its first row, of packed sequences
    int rows;       // positions of queries
    int keys;       // positions of keys
    int live_keys;  // keys that exist
};

// The head that so many neighbors share. Divided when it is needed: registers are scarcer than time.
LINATTN_DEVICE Int head_of_group(Int head, int group) {
    return group == 1 ? head : static_cast<u32>(head) / static_cast<u32>(group);
}

LINATTN_DEVICE const unsigned char* address(const Operand& operand, const Place& place, int position, Int column) {
    const Tensor4& x = operand.tensor;
    const Int head = head_of_group(place.head, operand.group);
    const Int offset = place.batch * x.batch + head * x.head + (place.start + position) * x.position + column * x.dim;
    return static_cast<const unsigned char*>(x.data) + offset * bytes_of(operand.dtype);
}

// `count` neighbors of a row from global memory; the others are zero.
LINATTN_DEVICE void read_eight(float (&x)[8], const Operand& operand, const Place& place, int position, Int column,
                               Int count) {
    if (operand.vectors && count >= 8) return read_eight(x, address(operand, place, position, column), operand.dtype);
    LINATTN_UNROLL
    for (int k = 0; k < 8; ++k) {
        x[k] = k < count ? read_number(address(operand, place, position, column + k), 0, operand.dtype) : 0.0f;
    }
}

// Where rows land in shared memory as they are, `pitch` of the operand's own numbers from row to row.
struct Staged {
    unsigned char* data;
    int pitch;
};

// How the threads of a block share the rows of a tile: side by side along a row, `per_row` of them, then down the rows.
template <int rows, int per_row, int threads>
struct Sharing {
    static_assert(threads % per_row == 0);
    static constexpr int at_once = threads / per_row, passes = (rows + at_once - 1) / at_once;
    int row = thread_index() / per_row, at = thread_index() % per_row;
    // Whether a pass has a row for every thread.
    static constexpr bool even = rows % at_once == 0;
};

// Rows whose 16 bytes lie together. `whole`: all rows and columns are there.
template <bool whole, int rows, int width, int threads, int bytes>
LINATTN_DEVICE void stage_vectors(const Staged& staged, const unsigned char* source, Int stride, int columns,
                                  int count) {
    using Threads = Sharing<rows, width * bytes / 16, threads>;
    Threads of;
    const int first = of.at * 16;
    const int there_in_row = (columns < width ? columns : width) * bytes - first;
    unsigned char* target = staged.data + (of.row * staged.pitch * bytes + first);
    source += of.row * stride + first;
    const unsigned char* const start = source;
    LINATTN_UNROLL
    for (int pass = 0; pass < Threads::passes; ++pass) {
        const int row = of.row + pass * Threads::at_once;
        if (Threads::even || row < rows) {
            const int there = whole ? 16 : row < count ? there_in_row : 0;
            // What is not there is not read; the address is one that exists, or would if anything did.
            copy16(target, there > 0 ? source : start, there >= 16 ? 16 : there > 0 ? there : 0);
        }
        target += Threads::at_once * staged.pitch * bytes;
        source += Threads::at_once * stride;
    }
}

// Rows of any strides, a number at a time.
template <int rows, int width, int threads>
LINATTN_DEVICE void stage_numbers(const Staged& staged, const Operand& operand, const unsigned char* source,
                                  int columns, int count) {
    const int bytes = bytes_of(operand.dtype);
    for (int i = thread_index(); i < rows * width; i += threads) {
        const int row = i / width, at = i % width;
        const unsigned char* number = source + (row * operand.tensor.position + at * operand.tensor.dim) * bytes;
        const bool there = row < count && at < columns;
        unsigned char* target = staged.data + (row * staged.pitch + at) * bytes;
        if (bytes == 4) *reinterpret_cast<u32*>(target) = there ? *reinterpret_cast<const u32*>(number) : 0u;
        else *reinterpret_cast<u16*>(target) = there ? *reinterpret_cast<const u16*>(number) : u16(0);
    }
}

// Rows that begin anywhere, whose numbers of 2 bytes are neighbors: by aligned words of 4 bytes, of which the first and
// the last of a row may hold one of its numbers alone.
template <int rows, int width, int threads>
LINATTN_DEVICE void stage_pairs(const Staged& staged, const unsigned char* source, Int stride, int columns, int count) {
    constexpr int words = width / 2 + 1;
    const int end = columns < width ? columns : width;
    LINATTN_UNROLL_NONE
    for (int i = thread_index(); i < rows * words; i += threads) {
        const int row = i / words;
        const unsigned char* const numbers = source + row * stride;
        const int at = i % words * 2 - static_cast<int>(reinterpret_cast<unsigned long long>(numbers) % 4 / 2);
        const u16* const pair = reinterpret_cast<const u16*>(numbers) + at;
        const bool low = row < count && at >= 0 && at < end, high = row < count && at + 1 < end;
        u32 both = 0;
        if (low && high) both = *reinterpret_cast<const u32*>(pair);
        else if (low) both = pair[0];
        else if (high) both = static_cast<u32>(pair[1]) << 16;
        u16* const target = reinterpret_cast<u16*>(staged.data) + (row * staged.pitch + at);
        if (at >= 0 && at < width) target[0] = static_cast<u16>(both & 0xffffu);
        if (at + 1 < width) target[1] = static_cast<u16>(both >> 16);
    }
}

// Starts copying `rows` rows from `source` on, `columns` of each, as they are. Rows from `count` on, and columns that
// are not there, are left zero. With one part all numbers have two bytes.
template <int rows, int width, int threads, int parts>
LINATTN_DEVICE void stage(const Staged& staged, const Operand& operand, const unsigned char* source, int columns,
                          int count) {
    if (!operand.vectors) {
        if (operand.tensor.dim == 1 && operand.dtype != Dtype::float32)
            stage_pairs<rows, width, threads>(staged, source, operand.tensor.position * 2, columns, count);
        else stage_numbers<rows, width, threads>(staged, operand, source, columns, count);
    } else if (parts == 1 || operand.dtype != Dtype::float32) {
        const Int stride = operand.tensor.position * 2;
        if (count == rows && columns >= width)
            stage_vectors<true, rows, width, threads, 2>(staged, source, stride, width, rows);
        else stage_vectors<false, rows, width, threads, 2>(staged, source, stride, columns, count);
    } else {
        stage_vectors<false, rows, width, threads, 4>(staged, source, operand.tensor.position * 4, columns, count);
    }
}

// phi(x) = elu(x) + 1. float32's exponential takes so many instructions that the compiler skips it by a branch for every
// positive number. As a sum of both sides, of which one is 0 or 1, it needs none, and eight numbers overlap.
template <int parts>
LINATTN_DEVICE float elu_feature(float x) {
    if constexpr (parts < 3) {
        return feature<parts>(FeatureMap::elu, x);
    } else {
        const bool positive = x > 0.0f;
        return (positive ? x : 0.0f) + below_zero<parts>(positive ? 0.0f : x);
    }
}

// What becomes of eight numbers of a row on their way to the tile.
template <int parts>
LINATTN_DEVICE void apply(float (&x)[8], const Operand& operand, const float* divisor) {
    if (operand.divided) {
        const float factor = 1.0f / *divisor;
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) x[k] *= factor;
    } else if (operand.map == FeatureMap::elu) {
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) x[k] = elu_feature<parts>(x[k]);
    } else if (operand.map == FeatureMap::relu) {
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) x[k] = feature<parts>(FeatureMap::relu, x[k]);
    }
}

// Writes eight numbers of a row; `whole`: the row and its eight columns are there.
template <bool whole, int rows, int width, int threads, int parts, int pitch>
LINATTN_DEVICE void prepare_rows(Tile<parts, pitch, rows> tile, const Staged& staged, const Operand& operand,
                                 int columns, int live, const float* divisors, const unsigned char* exists) {
    using Threads = Sharing<rows, width / 8, threads>;
    Threads of;
    const Dtype dtype = parts == 1 ? Dtype::bfloat16 : operand.dtype;
    const int first = of.at * 8;
    LINATTN_UNROLL_NONE
    for (int pass = 0; pass < Threads::passes; ++pass) {
        const int row = of.row + pass * Threads::at_once;
        if (!Threads::even && row >= rows) continue;
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (whole || (row < live && first < columns && (exists == nullptr || exists[row]))) {
            read_eight(x, staged.data + (row * staged.pitch + first) * bytes_of(dtype), dtype);
            apply<parts>(x, operand, divisors + row);
            if (!whole && first + 8 > columns) {
                LINATTN_UNROLL
                for (int k = 0; k < 8; ++k) x[k] = first + k < columns ? x[k] : 0.0f;
            }
        }
        tile.write_eight(row, first, x);
    }
}

// The staged rows as the product wants them, in the tile; with one part the tile is where they were staged, and rows
// that are to stay as they are need nothing. Of the first `live` rows, those exist that `exists` says (null: all);
// `divisors` are the rows' normalizers.
template <int rows, int width, int threads, int parts, int pitch>
LINATTN_DEVICE void prepare(Tile<parts, pitch, rows> tile, const Staged& staged, const Operand& operand, Int column,
                            int live, const float* divisors, const unsigned char* exists) {
    if (parts == 1 && !operand.divided && operand.map == FeatureMap::identity && exists == nullptr) return;
    const int columns = static_cast<int>(operand.width - column);
    if (parts == 1 && live == rows && columns >= width && exists == nullptr) {
        prepare_rows<true, rows, width, threads>(tile, staged, operand, columns, live, divisors, nullptr);
    } else {
        prepare_rows<false, rows, width, threads>(tile, staged, operand, columns, live, divisors, exists);
    }
}

}  // namespace linattn
