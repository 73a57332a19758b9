// The rows of a chunk: what each sees of the chunk's keys and of the state before them, and its way to global memory.
#pragma once

#include "linattn/device/product/state.cuh"

namespace linattn {

template <class Shape>
class ProductRows : protected ProductState<Shape> {
    using State = ProductState<Shape>;
    static constexpr int parts = Shape::parts, A = Shape::A, E = Shape::E, C = Shape::C;
    using TileE = typename ProductMemory<Shape>::TileE;

protected:
    using State::call_, State::is_wanted, State::memory_, State::work_;

    LINATTN_DEVICE ProductRows(const Product& call, unsigned char* shared) : State(call, shared) {
        const int warp = thread_index() / 32;
        row_group_ = warp % Shape::row_groups;
        column_group_ = warp / Shape::row_groups;
    }

    // out_i for the 16 rows and the columns of this warp.
    LINATTN_DEVICE void read_rows(Int position, bool sums) {
        float out[Shape::out_tiles + 1][4] = {};
        if (sums) {
            const int end = call_.backwards ? C / 16 : row_group_ + 1;
            LINATTN_UNROLL_NONE
            for (int j = call_.backwards ? row_group_ : 0; j < end; ++j) add_block(out, j);
        }
        add_state(out);
        finish(out, position);
    }

private:
    // Rows that are not zero.
    LINATTN_DEVICE Int live_rows() const { return call_.rows_are_keys ? work_.place.live_keys : work_.place.rows; }

    LINATTN_DEVICE LeftFragment<parts> row_fragment(int k) const {
        return memory_.rows().left(row_group_ * 16, k * 16);
    }

    // out += (a . b + bias) c for the 16 keys of block j.
    LINATTN_DEVICE void add_block(float (&out)[Shape::out_tiles + 1][4], int j) {
        float scores[2][4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < A / 16; ++k) {
            if (k * 16 >= call_.row.width) continue;
            const LeftFragment<parts> rows = row_fragment(k);
            const RightFragment<parts> keys = memory_.keys().right_transposed(j * 16, k * 16);
            multiply<parts>(scores[0], rows, keys, 0);
            multiply<parts>(scores[1], rows, keys, 1);
        }
        if (call_.bias != Bias::none || j == row_group_) weigh(scores, j);
        multiply_values(out, left_of<parts>(scores), memory_.values(), j * 16);
    }

    // Adds the bias, and leaves only the keys that each row sees.
    LINATTN_DEVICE void weigh(float (&scores)[2][4], int j) const {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int n = 0; n < 2; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int row = row_group_ * 16 + lane / 4 + i / 2 * 8, key = j * 16 + n * 8 + lane % 4 * 2 + i % 2;
                if (call_.bias != Bias::none) scores[n][i] += memory_.bias()[call_.bias == Bias::of_row ? row : key];
                if (call_.backwards ? key < row : key > row) scores[n][i] = 0.0f;
            }
        }
    }

    // out += a X, and what the bias adds to it.
    LINATTN_DEVICE void add_state(float (&out)[Shape::out_tiles + 1][4]) {
        LINATTN_UNROLL
        for (int k = 0; k < A / 16; ++k) {
            if (k * 16 < call_.row.width) multiply_values(out, row_fragment(k), memory_.state(), k * 16);
        }
        if (call_.bias == Bias::none) return;
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int n = 0; n < Shape::out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int row = row_group_ * 16 + lane / 4 + i / 2 * 8;
                const float weight = call_.bias == Bias::of_row ? memory_.bias()[row] : 1.0f;
                out[n][i] += weight * memory_.state_vector()[out_column(n) + lane % 4 * 2 + i % 2];
            }
        }
    }

    LINATTN_DEVICE int out_column(int n) const { return (column_group_ * Shape::out_tiles + n) * 8; }

    LINATTN_DEVICE void multiply_values(float (&out)[Shape::out_tiles + 1][4], const LeftFragment<parts>& left,
                                        TileE values, int row) const {
        LINATTN_UNROLL
        for (int n = 0; n + 1 < Shape::out_tiles; n += 2) {
            if (!is_wanted(out_column(n))) continue;
            const RightFragment<parts> right = values.right(row, out_column(n));
            multiply<parts>(out[n], left, right, 0);
            multiply<parts>(out[n + 1], left, right, 1);
        }
        if (Shape::out_tiles % 2 == 1) {
            constexpr int last = Shape::out_tiles - 1;
            multiply<parts>(out[last], left, values.template right<true>(row, out_column(last)), 0);
        }
        if (call_.finish == Finish::divide) {
            multiply<parts>(out[Shape::out_tiles], left, values.template right<true>(row, E), 0);
        }
    }

    // Divides, and brings the rows to global memory through the row tile, which is free by now.
    LINATTN_DEVICE void finish(float (&out)[Shape::out_tiles + 1][4], Int position) {
        const int lane = thread_index() % 32, row = row_group_ * 16 + lane / 4;
        if (call_.finish == Finish::divide) divide(out, position);
        if (Shape::column_groups > 1) LINATTN_BLOCK_BARRIER();  // others read the same rows
        else LINATTN_WARP_BARRIER();
        LINATTN_UNROLL
        for (int n = 0; n < Shape::out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; i += 2) {
                memory_.rows().write_pair(row + i / 2 * 8, out_column(n) + lane % 4 * 2, out[n][i], out[n][i + 1]);
            }
        }
        LINATTN_WARP_BARRIER();
        store(position);
    }

    LINATTN_DEVICE void divide(float (&out)[Shape::out_tiles + 1][4], Int position) {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            // The lane with the first column of the last tile has the sum of the weights.
            const float n = shuffle(out[Shape::out_tiles][2 * half], lane & ~3) + call_.eps;
            const Int row = position + row_group_ * 16 + lane / 4 + half * 8;
            if (lane % 4 == 0 && work_.column == 0 && column_group_ == 0 && row < work_.place.rows) {
                call_.out_normalizer[of_query(call_, work_, row)] = n;
            }
            if (!call_.normalize) continue;
            // The inverse of a sum of features that all but vanish would overflow.
            const float scale = n < 1e-30f && n > 0.0f ? 1e30f : 1.0f, factor = 1.0f / (n * scale);
            LINATTN_UNROLL
            for (int tile = 0; tile < Shape::out_tiles; ++tile) {
                out[tile][2 * half] = out[tile][2 * half] * scale * factor;
                out[tile][2 * half + 1] = out[tile][2 * half + 1] * scale * factor;
            }
        }
    }

    // 16 rows of the row tile, the columns of this warp, eight numbers at a time.
    LINATTN_DEVICE void store(Int position) {
        const Int length = call_.rows_are_keys ? call_.keys : call_.queries;
        const Int first = work_.column + column_group_ * Shape::out_tiles * 8, row = row_group_ * 16;
        const Int at =
            ((work_.place.batch * call_.heads + work_.place.head) * length + work_.place.start + position + row) *
                call_.value.width +
            first;
        unsigned char* target = static_cast<unsigned char*>(call_.out) + at * bytes_of(call_.out_dtype);
        const bool whole = call_.out_vectors && position + row + 16 <= live_rows() &&
                           first + Shape::out_tiles * 8 <= call_.value.width;
        if (parts == 1 && whole && call_.finish != Finish::derivative) store_whole(target);
        else store_eights(target, position);
    }

    LINATTN_DEVICE int store_row(int i) const { return i / Shape::out_tiles; }
    LINATTN_DEVICE int store_column(int i) const { return i % Shape::out_tiles * 8; }

    LINATTN_DEVICE void store_whole(unsigned char* target) const {
        LINATTN_UNROLL
        for (int pass = 0; pass < (16 * Shape::out_tiles + 31) / 32; ++pass) {
            const int i = thread_index() % 32 + pass * 32;
            if (i >= 16 * Shape::out_tiles) continue;
            const Element<parts>* source =
                memory_.rows().at(row_group_ * 16 + store_row(i), out_column(0) + store_column(i));
            *reinterpret_cast<Quad*>(target + (store_row(i) * call_.value.width + store_column(i)) * 2) =
                *reinterpret_cast<const Quad*>(source);
        }
    }

    LINATTN_DEVICE void store_eights(unsigned char* target, Int position) const {
        const Int length = call_.rows_are_keys ? work_.place.keys : work_.place.rows;
        for (int i = thread_index() % 32; i < 16 * Shape::out_tiles; i += 32) {
            const int row = row_group_ * 16 + store_row(i), column = out_column(0) + store_column(i);
            if (position + row >= length || !is_wanted(column)) continue;
            const Int offset = store_row(i) * call_.value.width + store_column(i);
            store_eight(target + offset * bytes_of(call_.out_dtype), position + row, row, column);
        }
    }

    LINATTN_DEVICE void store_eight(void* target, Int position, int row, int column) const {
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const Int first = work_.column + column, columns = call_.value.width - first;
        const int count = columns < 8 ? static_cast<int>(columns) : 8;
        if (position < live_rows()) {
            memory_.rows().read_eight(x, row, column);
            if (call_.finish == Finish::derivative) multiply_derivative(x, position, first, count);
        }
        if (call_.out_vectors && count == 8) {
            write_eight(target, call_.out_dtype, x);
            return;
        }
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) {
            if (k < count) write_number(target, k, call_.out_dtype, x[k]);
        }
    }

    LINATTN_DEVICE void multiply_derivative(float (&x)[8], Int position, Int first, int count) const {
        const Operand& origin = call_.origin;
        if (origin.vectors && count == 8) {
            float y[8];
            read_eight(y, address(origin, work_.place, position, first), origin.dtype);
            LINATTN_UNROLL
            for (int k = 0; k < 8; ++k) x[k] *= feature_derivative<parts>(origin.map, y[k]);
            return;
        }
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) {
            if (k >= count) continue;
            const void* number = address(origin, work_.place, position, first + k);
            x[k] *= feature_derivative<parts>(origin.map, read_number(number, 0, origin.dtype));
        }
    }

    int row_group_, column_group_;
};

}  // namespace linattn
