// The results of a chunk's rows on their way from registers to global memory.
#pragma once

#include "linattn/device/product/state.cuh"

namespace linattn {

template <class Shape>
class ProductResults : protected ProductState<Shape> {
    using State = ProductState<Shape>;
    static constexpr int parts = Shape::parts, E = Shape::E, out_tiles = Shape::out_tiles;

protected:
    using State::call_, State::memory_, State::work_;
    using Out = float[out_tiles + 1][4];  // the last: the sums of the weights

    LINATTN_DEVICE ProductResults(const Product& call, unsigned char* shared) : State(call, shared) {
        const int warp = thread_index() / 32;
        row_group_ = (warp + rotation(call, Shape::row_groups)) % Shape::row_groups;
        column_group_ = warp / Shape::row_groups;
    }

    LINATTN_DEVICE int out_column(int n) const { return (column_group_ * out_tiles + n) * 8; }

    // Divides or multiplies by the derivative, and brings the rows of this warp to global memory through their tile,
    // which is free by now. `turn`: where their origins were staged.
    template <bool second>
    LINATTN_DEVICE void finish(Out& out, int position, int turn) {
        const int lane = thread_index() % 32, row = row_group_ * 16 + lane / 4;
        if constexpr (second) multiply_derivative_of_features(out);
        if (!Shape::pair && call_.finish == Finish::divide) divide(out, position);
        if (Shape::column_groups > 1) LINATTN_BLOCK_BARRIER();  // others read the same rows
        else LINATTN_WARP_BARRIER();
        LINATTN_UNROLL
        for (int n = 0; n < out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; i += 2) {
                memory_.results(second).write_pair(row + i / 2 * 8, out_column(n) + lane % 4 * 2, out[n][i],
                                                   out[n][i + 1]);
            }
        }
        LINATTN_WARP_BARRIER();
        store<second>(position, turn);
    }

    int row_group_, column_group_;

private:
    // Rows that are not zero: those before the first number, less those that a mask leaves out.
    LINATTN_DEVICE int live_rows() const { return call_.rows_are_keys ? work_.place.live_keys : work_.place.rows; }
    LINATTN_DEVICE bool has_mask() const { return call_.rows_are_keys && call_.mask != nullptr; }

    template <bool second>
    LINATTN_DEVICE const Result& result() const {
        return second ? call_.second_result : call_.result;
    }

    // By the features themselves, which are in the first's row tile: phi'(k) is known from phi(k).
    LINATTN_DEVICE void multiply_derivative_of_features(Out& out) const {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int n = 0; n < out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; i += 2) {
                float low, high;
                memory_.rows().read_pair(low, high, row_group_ * 16 + lane / 4 + i / 2 * 8,
                                         out_column(n) + lane % 4 * 2);
                out[n][i] *= derivative_by_feature(call_.row.map, low);
                out[n][i + 1] *= derivative_by_feature(call_.row.map, high);
            }
        }
    }

    LINATTN_DEVICE void divide(Out& out, int position) {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            // The lane with the first column of the last tile has the sum of the weights.
            const float n = shuffle(out[out_tiles][2 * half], lane & ~3) + call_.eps;
            const int row = position + row_group_ * 16 + lane / 4 + half * 8;
            if (lane % 4 == 0 && work_.column == 0 && column_group_ == 0 && row < work_.place.rows) {
                call_.out_normalizer[work_.first_query + row] = n;
            }
            if (!call_.normalize) continue;
            // The inverse of a sum of features that all but vanish would overflow.
            const float scale = n < 1e-30f && n > 0.0f ? 1e30f : 1.0f, factor = 1.0f / (n * scale);
            LINATTN_UNROLL
            for (int tile = 0; tile < out_tiles; ++tile) {
                out[tile][2 * half] = out[tile][2 * half] * scale * factor;
                out[tile][2 * half + 1] = out[tile][2 * half + 1] * scale * factor;
            }
        }
    }

    // 16 rows of the row tile, the columns of this warp, eight numbers at a time.
    template <bool second>
    LINATTN_DEVICE void store(int position, int turn) {
        const Result& to = result<second>();
        const int row = row_group_ * 16;
        const Int first = work_.column + out_column(0), at = (work_.first_row + position + row) * to.width + first;
        unsigned char* target = static_cast<unsigned char*>(to.data) + at * bytes_of(to.dtype);
        const bool whole =
            to.vectors && !has_mask() && position + row <= live_rows() - 16 && first + out_tiles * 8 <= to.width;
        if constexpr (parts == 1) {
            if (whole && call_.finish != Finish::derivative) return store_whole<second>(target);
        }
        store_eights<second>(target, position, turn);
    }

    LINATTN_DEVICE int store_row(int i) const { return i / out_tiles; }
    LINATTN_DEVICE int store_column(int i) const { return i % out_tiles * 8; }

    template <bool second>
    LINATTN_DEVICE void store_whole(unsigned char* target) const {
        LINATTN_UNROLL
        for (int pass = 0; pass < (16 * out_tiles + 31) / 32; ++pass) {
            const int i = thread_index() % 32 + pass * 32;
            if (i >= 16 * out_tiles) continue;
            const u16* source =
                memory_.results(second).at(row_group_ * 16 + store_row(i), out_column(0) + store_column(i));
            *reinterpret_cast<Quad*>(target + (store_row(i) * result<second>().width + store_column(i)) * 2) =
                *reinterpret_cast<const Quad*>(source);
        }
    }

    template <bool second>
    LINATTN_DEVICE void store_eights(unsigned char* target, int position, int turn) const {
        const Result& to = result<second>();
        const int length = call_.rows_are_keys ? work_.place.keys : work_.place.rows;
        for (int i = thread_index() % 32; i < 16 * out_tiles; i += 32) {
            const int row = row_group_ * 16 + store_row(i), column = out_column(0) + store_column(i);
            if (position + row >= length || work_.column + column >= to.width) continue;
            const Int offset = store_row(i) * to.width + store_column(i);
            store_eight<second>(target + offset * bytes_of(to.dtype), position + row, row, column, turn);
        }
    }

    template <bool second>
    LINATTN_DEVICE void store_eight(void* target, int position, int row, int column, int turn) const {
        const Result& to = result<second>();
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const Int left = to.width - work_.column - column;
        const int count = left < 8 ? static_cast<int>(left) : 8;
        if (position < live_rows() && (!has_mask() || memory_.exists(turn)[row])) {
            memory_.results(second).read_eight(x, row, column);
            if (!Shape::pair && call_.finish == Finish::derivative) {
                multiply_derivative(x, position, row, column, count, turn);
            }
        }
        if (to.vectors && count == 8) {
            write_eight(target, to.dtype, x);
            return;
        }
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) {
            if (k < count) write_number(target, k, to.dtype, x[k]);
        }
    }

    LINATTN_DEVICE void multiply_derivative(float (&x)[8], int position, int row, int column, int count,
                                            int turn) const {
        const Operand& origin = call_.origin;
        float y[8];
        if constexpr (Shape::stages_origin) {
            const Staged staged = memory_.staged_origin(turn);
            read_eight(y, staged.data + (row * staged.pitch + column) * bytes_of(origin.dtype), origin.dtype);
        } else {
            read_eight(y, origin, work_.place, position, work_.column + column, count);
        }
        if (origin.map == FeatureMap::elu) {
            // e^y below zero, where it is less than 1: known without a branch, and for numbers above zero too.
            LINATTN_UNROLL
            for (int k = 0; k < 8; ++k) x[k] *= derivative_by_feature(FeatureMap::elu, below_zero<parts>(y[k]));
        } else {
            LINATTN_UNROLL
            for (int k = 0; k < 8; ++k) x[k] *= feature_derivative<parts>(origin.map, y[k]);
        }
    }
};

}  // namespace linattn
