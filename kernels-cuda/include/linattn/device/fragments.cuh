// Matrix products on tensor cores, operands from shared memory. A tile is row-major there, with the number of parts
// deciding how: one part keeps bfloat16, which ldmatrix brings into registers; more keep float32, which is cut into
// bfloat16 parts on the way.
#pragma once

#include "linattn/device/numbers.cuh"

namespace linattn {

template <int parts>
struct ElementOf {
    using Type = float;
};
template <>
struct ElementOf<1> {
    using Type = u16;
};
template <int parts>
using Element = typename ElementOf<parts>::Type;

// The left operand of a product, 16 x 16, and the right one, 16 x 16 as two of 16 x 8, each in parts; multiply_bf16
// defines which numbers each register holds.
template <int parts>
struct LeftFragment {
    u32 pairs[parts][4];
};
template <int parts>
struct RightFragment {
    u32 pairs[parts][4];
};

// c += a b for one half (columns 0 to 7, or 8 to 15) of b. Of the products of parts, those that would fall below the
// last place of the sum of all are left out; the small ones are added first.
template <int parts>
LINATTN_DEVICE void multiply(float (&c)[4], const LeftFragment<parts>& a, const RightFragment<parts>& b, int half) {
    // Tensor cores cut off what lies below the last place of a sum. For float32's bits the small products have a sum of
    // their own, which is then added with rounding to nearest.
    float small[4] = {};
    float (&sum)[4] = parts > 2 ? small : c;
    LINATTN_UNROLL
    for (int rank = parts - 1; rank > 0; --rank) {
        LINATTN_UNROLL
        for (int i = 0; i <= rank; ++i) {
            multiply_bf16(sum, a.pairs[i], b.pairs[rank - i][2 * half], b.pairs[rank - i][2 * half + 1]);
        }
    }
    multiply_bf16(c, a.pairs[0], b.pairs[0][2 * half], b.pairs[0][2 * half + 1]);
    if (parts > 2) {
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) c[i] += small[i];
    }
}

// A tile of Element<parts> in shared memory, `pitch` elements from row to row.
template <int parts, int pitch>
struct Tile {
    Element<parts>* data;

    LINATTN_DEVICE const Element<parts>* at(int row, int column) const { return data + row * pitch + column; }

    // Two numbers to neighboring columns.
    LINATTN_DEVICE void write_pair(int row, int column, float low, float high) const {
        if constexpr (parts == 1) {
            *reinterpret_cast<u32*>(data + row * pitch + column) = pack_bf16(low, high);
        } else {
            data[row * pitch + column] = low;
            data[row * pitch + column + 1] = high;
        }
    }

    LINATTN_DEVICE float read(int row, int column) const {
        if constexpr (parts == 1) return low_bf16(*at(row, column));
        else return *at(row, column);
    }

    LINATTN_DEVICE void write_eight(int row, int column, const float (&x)[8]) const {
        linattn::write_eight(data + row * pitch + column, parts == 1 ? Dtype::bfloat16 : Dtype::float32, x);
    }

    LINATTN_DEVICE void read_eight(float (&x)[8], int row, int column) const {
        linattn::read_eight(x, data + row * pitch + column, parts == 1 ? Dtype::bfloat16 : Dtype::float32);
    }

    // a[m][k] = tile[row + m][column + k].
    LINATTN_DEVICE LeftFragment<parts> left(int row, int column) const {
        LeftFragment<parts> a;
        const int lane = thread_index() % 32;
        if constexpr (parts == 1) {
            load_matrices(a.pairs[0], at(row + lane % 16, column + lane / 16 * 8));
        } else {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float* x = at(row + lane / 4 + i % 2 * 8, column + lane % 4 * 2 + i / 2 * 8);
                set(a.pairs, i, x[0], x[1]);
            }
        }
        return a;
    }

    // a[m][k] = tile[row + k][column + m].
    LINATTN_DEVICE LeftFragment<parts> left_transposed(int row, int column) const {
        LeftFragment<parts> a;
        const int lane = thread_index() % 32;
        if constexpr (parts == 1) {
            load_matrices_transposed(a.pairs[0], at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
        } else {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float* x = at(row + lane % 4 * 2 + i / 2 * 8, column + lane / 4 + i % 2 * 8);
                set(a.pairs, i, x[0], x[pitch]);
            }
        }
        return a;
    }

    // b[k][n] = tile[row + n][column + k].
    LINATTN_DEVICE RightFragment<parts> right_transposed(int row, int column) const {
        RightFragment<parts> b;
        const int lane = thread_index() % 32;
        if constexpr (parts == 1) {
            load_matrices(b.pairs[0], at(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8));
        } else {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const float* x = at(row + lane / 4 + i / 2 * 8, column + lane % 4 * 2 + i % 2 * 8);
                set(b.pairs, i, x[0], x[1]);
            }
        }
        return b;
    }

    // b[k][n] = tile[row + k][column + n]; where `narrow`, only the columns 0 to 7 of b are there.
    template <bool narrow = false>
    LINATTN_DEVICE RightFragment<parts> right(int row, int column) const {
        RightFragment<parts> b;
        const int lane = thread_index() % 32;
        if constexpr (parts == 1) {
            load_matrices_transposed(b.pairs[0], at(row + lane % 16, column + (narrow ? 0 : lane / 16 * 8)));
        } else {
            LINATTN_UNROLL
            for (int i = 0; i < (narrow ? 2 : 4); ++i) {
                const float* x = at(row + lane % 4 * 2 + i % 2 * 8, column + lane / 4 + i / 2 * 8);
                set(b.pairs, i, x[0], x[pitch]);
            }
        }
        return b;
    }

private:
    LINATTN_DEVICE static void set(u32 (&pairs)[parts][4], int i, float low, float high) {
        u32 cut[parts];
        split<parts>(cut, low, high);
        LINATTN_UNROLL
        for (int part = 0; part < parts; ++part) pairs[part][i] = cut[part];
    }
};

// A 16 x 16 block of sums, as two of 16 x 8, turned into the left operand of the next product.
template <int parts>
LINATTN_DEVICE LeftFragment<parts> left_of(const float (&block)[2][4]) {
    LeftFragment<parts> a;
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
        u32 cut[parts];
        split<parts>(cut, block[i / 2][i % 2 * 2], block[i / 2][i % 2 * 2 + 1]);
        LINATTN_UNROLL
        for (int part = 0; part < parts; ++part) a.pairs[part][i] = cut[part];
    }
    return a;
}

}  // namespace linattn
