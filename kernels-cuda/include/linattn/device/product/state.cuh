// The state of a block: X in registers, spread over the warps, and the vector that runs along its columns (of a pair:
// its rows).
#pragma once

#include "linattn/device/product/base.cuh"

namespace linattn {

template <class Shape>
class ProductState : protected ProductBase<Shape> {
    using Base = ProductBase<Shape>;
    static constexpr int parts = Shape::parts, C = Shape::C, E = Shape::E, threads = Shape::threads;
    static constexpr int row_tiles = Shape::state_row_tiles, tiles = Shape::state_tiles;

protected:
    using Base::call_, Base::is_wanted, Base::memory_, Base::work_;

    LINATTN_DEVICE ProductState(const Product& call, unsigned char* shared) : Base(call, shared) {
        const int warp = thread_index() / 32;
        row_ = warp % Shape::state_rows * row_tiles * 16;
        column_ = warp / Shape::state_rows * tiles * 8;
    }

    // X and the vector as they are in global memory, zeros where that holds none.
    LINATTN_DEVICE void load_state(const StateView& view) {
        const Numbers from = numbers_of(view, work_.begins_with(call_, view));
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= tiles; ++n) {
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) numbers_[m][n][i] = read(at(from, m, n, i));
            }
        }
        if (!has_vector()) return;
        for (int i = thread_index(); i < E; i += threads) memory_.state_vector()[i] = read(at(from, i));
    }

    // Leaves X and the vector in global memory.
    LINATTN_DEVICE void store_state(const StateView& view) {
        const Numbers to = numbers_of(view, work_.writes(call_, view));
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= tiles; ++n) {
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) write(is_writer(n) ? at(to, m, n, i) : nullptr, numbers_[m][n][i]);
            }
        }
        if (!has_vector()) return;
        for (int i = thread_index(); i < E; i += threads) write(at(to, i), memory_.state_vector()[i]);
    }

    // The state as the tensor cores read it.
    LINATTN_DEVICE void publish_state() {
        if (rows() < Shape::A) clear_padding();
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= tiles; ++n) {
                if (n == tiles && (column_ != 0 || call_.column == Column::none)) continue;
                LINATTN_UNROLL
                for (int i = 0; i < 4; i += 2) {
                    memory_.state().write_pair(row_of(m, i), column_of(n, i), numbers_[m][n][i], numbers_[m][n][i + 1]);
                }
            }
        }
    }

    // X += b^T c of the chunk. The chunk's sum is taken apart and then added with rounding to nearest, which the tensor
    // cores do not do: over a long sequence their own sums would drift.
    LINATTN_DEVICE void add_keys() {
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LeftFragment<parts> keys[steps];
            LINATTN_UNROLL
            for (int k = 0; k < steps; ++k) keys[k] = memory_.keys().left_transposed(k * 16, row_ + m * 16);
            float sum[2][4];
            // Two tiles of columns at a time, all of the chunk for each.
            const auto load = [&](int i) { return memory_.values().right(i % steps * 16, column_ + i / steps * 16); };
            load_ahead<tiles / 2 * steps>(load, [&](int i, const RightFragment<parts>& values) {
                if (i % steps == 0) clear(sum);
                multiply<parts>(sum[0], keys[i % steps], values, 0);
                multiply<parts>(sum[1], keys[i % steps], values, 1);
                if (i % steps == steps - 1) add(m, i / steps * 2, sum);
            });
            if (call_.column != Column::none) add_column(m, keys);
        }
    }

    LINATTN_DEVICE bool has_vector() const { return call_.bias != Bias::none; }

    // The chunk's part of the vector, sum_j c_j or sum_j bias_j c_j (of a pair sum_j bias_j b_j), by groups of threads.
    LINATTN_DEVICE void sum_vector() const {
        if (!has_vector()) return;
        constexpr int groups = threads / E;
        const int column = thread_index() % E, group = thread_index() / E;
        float sum = 0;
        for (int j = group; j < C; j += groups) {
            const float number = Shape::pair ? memory_.keys().read(j, column) : memory_.values().read(j, column);
            sum += call_.bias == Bias::of_key ? memory_.bias()[j] * number : number;
        }
        memory_.vector_part(thread_index()) = sum;
    }

    // Adds the groups' parts, which a barrier after `sum_vector` has made visible.
    LINATTN_DEVICE void add_vector() const {
        if (!has_vector()) return;
        for (int i = thread_index(); i < E; i += threads) {
            float sum = memory_.state_vector()[i];
            for (int group = 0; group < threads / E; ++group) sum += memory_.vector_part(group * E + i);
            memory_.state_vector()[i] = sum;
        }
    }

private:
    static constexpr int steps = C / 16;

    LINATTN_DEVICE static void clear(float (&sum)[2][4]) {
        LINATTN_UNROLL
        for (int i = 0; i < 8; ++i) sum[i / 4][i % 4] = 0.0f;
    }
    LINATTN_DEVICE void add(int m, int n, const float (&sum)[2][4]) {
        LINATTN_UNROLL
        for (int i = 0; i < 8; ++i) numbers_[m][n + i / 4][i % 4] += sum[i / 4][i % 4];
    }

    // The column after the slice.
    LINATTN_DEVICE void add_column(int m, const LeftFragment<parts> (&keys)[steps]) {
        float sum[4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) {
            multiply<parts>(sum, keys[k], memory_.values().template right<true>(k * 16, E), 0);
        }
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) numbers_[m][tiles][i] += sum[i];
    }

    // Rows past the keys' width: products of zeros with numbers that may be infinite.
    LINATTN_DEVICE void clear_padding() {
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                if (row_of(m, i) < rows()) continue;
                LINATTN_UNROLL
                for (int n = 0; n <= tiles; ++n) numbers_[m][n][i] = 0.0f;
            }
        }
    }

    // Which number of X a register holds; the tile behind the slice is the column of the vector z.
    LINATTN_DEVICE int row_of(int m, int i) const { return row_ + m * 16 + thread_index() % 32 / 4 + i / 2 * 8; }
    LINATTN_DEVICE int column_of(int n, int i) const {
        return (n < tiles ? column_ + n * 8 : E) + thread_index() % 4 * 2 + i % 2;
    }
    LINATTN_DEVICE Int rows() const { return call_.sums ? call_.key.width : call_.row.width; }

    // That tile is held by all who share the rows of X, and by the blocks of all slices; one of them writes it.
    LINATTN_DEVICE bool is_writer(int n) const { return n < tiles || (column_ == 0 && work_.column == 0); }

    LINATTN_DEVICE static float read(const float* number) { return number == nullptr ? 0.0f : *number; }
    LINATTN_DEVICE static void write(float* number, float x) {
        if (number != nullptr) *number = x;
    }

    // Where the numbers of one state lie: a state is small, whatever the tensors are.
    struct Numbers {
        float* matrix;
        float* vector;
        int row, column;  // strides
    };
    LINATTN_DEVICE Numbers numbers_of(const StateView& view, bool mine) const {
        return {mine ? work_.matrix(call_, view) : nullptr, mine ? work_.vector(call_, view) : nullptr,
                static_cast<int>(view.row), static_cast<int>(view.column)};
    }

    // Where a register's number lies, or null where it is padding.
    LINATTN_DEVICE float* at(const Numbers& of, int m, int n, int i) const {
        const int row = row_of(m, i), column = column_of(n, i);
        if (row >= rows()) return nullptr;
        if (n == tiles)
            return column == E && call_.column != Column::none && of.vector != nullptr ? of.vector + row : nullptr;
        if (of.matrix == nullptr || !is_wanted(column)) return nullptr;
        return of.matrix + row * of.row + (static_cast<int>(work_.column) + column) * of.column;
    }

    // Where the vector's number of a column of the slice (of a pair: of a row of X) lies.
    LINATTN_DEVICE float* at(const Numbers& of, int i) const {
        const bool exists = Shape::pair ? i < rows() : is_wanted(i);
        return of.vector != nullptr && exists ? of.vector + work_.column + i : nullptr;
    }

    int row_, column_;
    float numbers_[row_tiles][tiles + 1][4];
};

}  // namespace linattn
