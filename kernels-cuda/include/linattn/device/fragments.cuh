// Matrix products on tensor cores, operands from shared memory, row-major there.
#pragma once

#include "linattn/device/numbers.cuh"

namespace linattn {

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

// Calls `use(i, load(i))` for i = 0, 1, ..., each load one step before its use: what is loaded arrives while the step
// before it multiplies.
template <int steps, class Load, class Use>
LINATTN_DEVICE void load_ahead(const Load& load, const Use& use) {
    auto next = load(0);
    LINATTN_UNROLL
    for (int i = 0; i < steps; ++i) {
        const auto now = next;
        if (i + 1 < steps) next = load(i + 1);
        use(i, now);
    }
}

// Numbers in shared memory, each split once into bfloat16 parts when it is written: for each part a plane of so many
// rows, `pitch` numbers from row to row, from which ldmatrix brings fragments into registers.
template <int parts, int pitch, int rows = 0>
struct Tile {
    static_assert(parts == 1 || rows > 0, "where the next plane begins");
    static constexpr int bytes = parts * rows * pitch * 2;

    u16* data;

    LINATTN_DEVICE u16* at(int row, int column, int part = 0) const {
        return data + (part * rows + row) * pitch + column;
    }

    // Two numbers to neighboring columns.
    LINATTN_DEVICE void write_pair(int row, int column, float low, float high) const {
        u32 cut[parts];
        split<parts>(cut, low, high);
        LINATTN_UNROLL
        for (int part = 0; part < parts; ++part) *reinterpret_cast<u32*>(at(row, column, part)) = cut[part];
    }

    LINATTN_DEVICE void write_eight(int row, int column, const float (&x)[8]) const {
        Quad quads[parts];
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) {
            u32 cut[parts];
            split<parts>(cut, x[2 * i], x[2 * i + 1]);
            LINATTN_UNROLL
            for (int part = 0; part < parts; ++part) quads[part].words[i] = cut[part];
        }
        LINATTN_UNROLL
        for (int part = 0; part < parts; ++part) *reinterpret_cast<Quad*>(at(row, column, part)) = quads[part];
    }

    // The parts of a number added up, which is exact when the smallest come first.
    LINATTN_DEVICE float read(int row, int column) const {
        float x = 0;
        LINATTN_UNROLL
        for (int part = parts - 1; part >= 0; --part) x += low_bf16(*at(row, column, part));
        return x;
    }
    LINATTN_DEVICE void read_pair(float& low, float& high, int row, int column) const {
        low = high = 0;
        LINATTN_UNROLL
        for (int part = parts - 1; part >= 0; --part) {
            const u32 pair = *reinterpret_cast<const u32*>(at(row, column, part));
            low += low_bf16(pair);
            high += high_bf16(pair);
        }
    }
    LINATTN_DEVICE void read_eight(float (&x)[8], int row, int column) const {
        LINATTN_UNROLL
        for (int i = 0; i < 8; ++i) x[i] = 0;
        LINATTN_UNROLL
        for (int part = parts - 1; part >= 0; --part) {
            float y[8];
            linattn::read_eight(y, at(row, column, part), Dtype::bfloat16);
            LINATTN_UNROLL
            for (int i = 0; i < 8; ++i) x[i] += y[i];
        }
    }

    // a[m][k] = tile[row + m][column + k].
    LINATTN_DEVICE LeftFragment<parts> left(int row, int column) const {
        const int lane = thread_index() % 32;
        return load<LeftFragment<parts>, false>(row + lane % 16, column + lane / 16 * 8);
    }
    // a[m][k] = tile[row + k][column + m].
    LINATTN_DEVICE LeftFragment<parts> left_transposed(int row, int column) const {
        const int lane = thread_index() % 32;
        return load<LeftFragment<parts>, true>(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8);
    }
    // b[k][n] = tile[row + n][column + k].
    LINATTN_DEVICE RightFragment<parts> right_transposed(int row, int column) const {
        const int lane = thread_index() % 32;
        return load<RightFragment<parts>, false>(row + lane % 8 + lane / 16 * 8, column + lane / 8 % 2 * 8);
    }
    // b[k][n] = tile[row + k][column + n]; where `narrow`, only the columns 0 to 7 of b are there.
    template <bool narrow = false>
    LINATTN_DEVICE RightFragment<parts> right(int row, int column) const {
        const int lane = thread_index() % 32;
        return load<RightFragment<parts>, true>(row + lane % 16, column + (narrow ? 0 : lane / 16 * 8));
    }

private:
    // The fragment of which this lane names a row.
    template <class Fragment, bool transposed>
    LINATTN_DEVICE Fragment load(int row, int column) const {
        Fragment fragment;
        LINATTN_UNROLL
        for (int part = 0; part < parts; ++part) {
            if (transposed) load_matrices_transposed(fragment.pairs[part], at(row, column, part));
            else load_matrices(fragment.pairs[part], at(row, column, part));
        }
        return fragment;
    }
};

// Numbers in shared memory as float32, split whenever they are read: results, which keep all of their bits, and states
// that would take too much memory in parts.
template <int parts, int pitch, int rows>
struct FloatTile {
    static constexpr int bytes = rows * pitch * 4;

    float* data;

    LINATTN_DEVICE float* at(int row, int column) const { return data + row * pitch + column; }

    LINATTN_DEVICE void write_pair(int row, int column, float low, float high) const {
        at(row, column)[0] = low;
        at(row, column)[1] = high;
    }
    LINATTN_DEVICE void read_eight(float (&x)[8], int row, int column) const {
        linattn::read_eight(x, at(row, column), Dtype::float32);
    }

    // As those of Tile.
    LINATTN_DEVICE RightFragment<parts> right_transposed(int row, int column) const {
        RightFragment<parts> b;
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) {
            const float* x = at(row + lane / 4 + i / 2 * 8, column + lane % 4 * 2 + i % 2 * 8);
            set(b.pairs, i, x[0], x[1]);
        }
        return b;
    }
    template <bool narrow = false>
    LINATTN_DEVICE RightFragment<parts> right(int row, int column) const {
        RightFragment<parts> b;
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int i = 0; i < (narrow ? 2 : 4); ++i) {
            const float* x = at(row + lane % 4 * 2 + i % 2 * 8, column + lane / 4 + i / 2 * 8);
            set(b.pairs, i, x[0], x[pitch]);
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
