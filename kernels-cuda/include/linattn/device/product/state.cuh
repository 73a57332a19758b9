// The state of a block: X in registers, spread over the warps, and the vector that runs along its columns.
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
        const Numbers from = numbers_of(view, work_, work_.begins_with(call_, view));
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
        const Numbers to = numbers_of(view, work_, work_.writes(call_, view));
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= tiles; ++n) {
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) write(is_writer(view, n) ? at(to, m, n, i) : nullptr, numbers_[m][n][i]);
            }
        }
        if (!has_vector()) return;
        for (int i = thread_index(); i < E; i += threads) write(at(to, i), memory_.state_vector()[i]);
    }

    // The sums of a segment become the state that it begins with, `before`, and `behind` gets the state at its end. All
    // is read before anything is written: for all that the compiler knows, the two may overlap, and a load would wait
    // for the store before it.
    LINATTN_DEVICE void exchange_states(const StateView& before, const Work& work_before, const StateView& behind,
                                        const Work& work_behind) {
        const Numbers from = numbers_of(before, work_before, work_.begins_with(call_, before));
        const Numbers to = numbers_of(behind, work_behind, work_.writes(call_, behind));
        float first[row_tiles][tiles + 1][4];
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= tiles; ++n) {
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) first[m][n][i] = read(at(from, m, n, i));
            }
        }
        LINATTN_UNROLL
        for (int m = 0; m < row_tiles; ++m) {
            LINATTN_UNROLL
            for (int n = 0; n <= tiles; ++n) {
                LINATTN_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const float last = first[m][n][i] + numbers_[m][n][i];
                    write(is_writer(behind, n) ? at(to, m, n, i) : nullptr, last);
                    numbers_[m][n][i] = first[m][n][i];
                }
            }
        }
        if (!has_vector()) return;
        for (int i = thread_index(); i < E; i += threads) {
            const float vector_before = read(at(from, i));
            write(at(to, i), vector_before + memory_.state_vector()[i]);
            memory_.state_vector()[i] = vector_before;
        }
    }

    // The state as the tensor cores read it.
    LINATTN_DEVICE void publish_state() const {
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
            const int row = row_ + m * 16;
            if (row >= call_.key.width) continue;
            LeftFragment<parts> keys[C / 16];
            LINATTN_UNROLL
            for (int k = 0; k < C / 16; ++k) keys[k] = memory_.keys().left_transposed(k * 16, row);
            LINATTN_UNROLL
            for (int n = 0; n + 1 < tiles; n += 2) {
                if (is_wanted(column_ + n * 8)) add_two(m, n, keys);
            }
            if (tiles % 2 == 1) add_one(m, tiles - 1, column_ + (tiles - 1) * 8, keys);
            if (call_.column != Column::none) add_one(m, tiles, E, keys);
        }
    }

    LINATTN_DEVICE bool has_vector() const { return call_.bias != Bias::none; }

    // The chunk's part of the vector, sum_j c_j or sum_j bias_j c_j, by groups of threads.
    LINATTN_DEVICE void sum_vector() const {
        if (!has_vector()) return;
        constexpr int groups = threads / E;
        const int column = thread_index() % E, group = thread_index() / E;
        float sum = 0;
        for (int j = group; j < C; j += groups) {
            const float value = memory_.values().read(j, column);
            sum += call_.bias == Bias::of_key ? memory_.bias()[j] * value : value;
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
    LINATTN_DEVICE void add_two(int m, int n, const LeftFragment<parts> (&keys)[C / 16]) {
        float sum[2][4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < C / 16; ++k) {
            const RightFragment<parts> values = memory_.values().right(k * 16, column_ + n * 8);
            multiply<parts>(sum[0], keys[k], values, 0);
            multiply<parts>(sum[1], keys[k], values, 1);
        }
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) {
            numbers_[m][n][i] += sum[0][i];
            numbers_[m][n + 1][i] += sum[1][i];
        }
    }

    LINATTN_DEVICE void add_one(int m, int n, int column, const LeftFragment<parts> (&keys)[C / 16]) {
        float sum[4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < C / 16; ++k) {
            multiply<parts>(sum, keys[k], memory_.values().template right<true>(k * 16, column), 0);
        }
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) numbers_[m][n][i] += sum[i];
    }

    // Which number of X a register holds; the tile behind the slice is the column of the vector z.
    LINATTN_DEVICE int row_of(int m, int i) const { return row_ + m * 16 + thread_index() % 32 / 4 + i / 2 * 8; }
    LINATTN_DEVICE int column_of(int n, int i) const {
        return (n < tiles ? column_ + n * 8 : E) + thread_index() % 4 * 2 + i % 2;
    }
    LINATTN_DEVICE Int rows() const { return call_.sums ? call_.key.width : call_.row.width; }

    // That tile is held by all who share the rows of X, and by the blocks of all slices; one of them writes it, unless
    // each slice has a place of its own for it.
    LINATTN_DEVICE bool is_writer(const StateView& view, int n) const {
        return n < tiles || (column_ == 0 && (work_.column == 0 || view.vector_slice != 0));
    }

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
    LINATTN_DEVICE Numbers numbers_of(const StateView& view, const Work& work, bool mine) const {
        return {mine ? work.matrix(call_, view) : nullptr, mine ? work.vector(call_, view, E) : nullptr,
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

    // Where the vector's number of a column of the slice lies.
    LINATTN_DEVICE float* at(const Numbers& of, int i) const {
        return of.vector != nullptr && is_wanted(i) ? of.vector + work_.column + i : nullptr;
    }

    int row_, column_;
    float numbers_[row_tiles][tiles + 1][4];
};

}  // namespace linattn
