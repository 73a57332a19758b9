// The rows of a chunk: what each sees of the chunk's keys and of the state before them, and its way to global memory.
#pragma once

#include "linattn/device/product/results.cuh"

namespace linattn {

// The rows of a warp as left operands. Those that would take too many registers are loaded whenever they are used.
template <int parts, int steps, bool kept, class TileOf>
class RowFragments {
public:
    LINATTN_DEVICE RowFragments(TileOf tile, int row) : tile_(tile), row_(row) {
        if constexpr (kept) {
            LINATTN_UNROLL
            for (int k = 0; k < steps; ++k) fragments_[k] = tile.left(row, k * 16);
        }
    }
    LINATTN_DEVICE LeftFragment<parts> operator()(int k) const {
        if constexpr (kept) return fragments_[k];
        else return tile_.left(row_, k * 16);
    }

private:
    TileOf tile_;
    int row_;
    LeftFragment<parts> fragments_[kept ? steps : 1];
};

// A pair has two results for each row: with rows a_i and a'_i, sum_j (a_i . b_j) c_j and sum_j (a'_i . c_j + bias) b_j,
// the `second`, in which keys and values change places and the state is read with its rows as columns.
template <class Shape>
class ProductRows : protected ProductResults<Shape> {
    using Results = ProductResults<Shape>;
    static constexpr int parts = Shape::parts, A = Shape::A, E = Shape::E, C = Shape::C, threads = Shape::threads;
    static constexpr int out_tiles = Shape::out_tiles, steps = A / 16;
    // With one part also 64 dims, but not in a pair, which would spill them.
    static constexpr bool keeps_rows = A <= 32 || (A <= 64 && parts == 1 && !Shape::pair);
    static constexpr bool narrow = out_tiles == 1;  // a warp has one tile of columns, else always two or more

protected:
    using Results::call_, Results::column_group_, Results::memory_, Results::out_column, Results::row_group_,
        Results::work_;
    using Out = typename Results::Out;

    LINATTN_DEVICE ProductRows(const Product& call, unsigned char* shared) : Results(call, shared) {}

    // The bias of each row, h_i = b_i - g_i . o_i, from the rows g as the products see them, the outputs o and what was
    // staged as b. Each thread reads what it has prepared itself.
    LINATTN_DEVICE void find_bias(int position, int count) {
        constexpr int per_row = A / 8;
        using Threads = Sharing<C, per_row, threads>;
        static_assert(Threads::even && per_row <= 32);
        Threads of;
        LINATTN_UNROLL
        for (int pass = 0; pass < Threads::passes; ++pass) {
            const int row = of.row + pass * Threads::at_once;
            float sum = call_.normalize ? product_with_output(position, row, of.at * 8, row < count) : 0.0f;
            LINATTN_UNROLL
            for (int mask = per_row / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
            if (of.at != 0) continue;
            const float bias = (call_.row_bias == nullptr ? 0.0f : memory_.staged_bias()[row]) - sum;
            memory_.bias()[row] = bias;
            if (row < count && work_.column == 0) call_.out_bias[work_.first_query + position + row] = bias;
        }
    }

    // The results for the 16 rows and the columns of this warp. The derivative of the second is taken at the first's
    // rows, where the first's results are to lie.
    LINATTN_DEVICE void read_rows(int position, int turn) {
        if constexpr (Shape::pair) read<true>(position, turn);
        read<false>(position, turn);
    }

private:
    // Eight products of a row with its output, added up.
    LINATTN_DEVICE float product_with_output(int position, int row, int column, bool exists) const {
        if (!exists) return 0.0f;
        float g[8], out[8];
        memory_.rows().read_eight(g, row, column);
        const Operand& output = call_.output;
        if constexpr (Shape::stages_origin) {
            const Staged staged = memory_.staged_output();
            read_eight(out, staged.data + (row * staged.pitch + column) * bytes_of(output.dtype), output.dtype);
        } else {
            read_eight(out, output, work_.place, position + row, column, static_cast<int>(output.width - column));
        }
        float sum = 0;
        LINATTN_UNROLL
        for (int k = 0; k < 8; ++k) sum += g[k] * out[k];
        return sum;
    }

    template <bool second>
    LINATTN_DEVICE auto row_tile() const {
        if constexpr (second) return memory_.second_rows();
        else return memory_.rows();
    }
    template <bool second>
    LINATTN_DEVICE auto key_tile() const {
        if constexpr (second) return memory_.values();
        else return memory_.keys();
    }
    template <bool second>
    LINATTN_DEVICE auto value_tile() const {
        if constexpr (second) return memory_.keys();
        else return memory_.values();
    }
    template <bool second>
    LINATTN_DEVICE bool has_bias() const {
        return call_.bias != Bias::none && second == Shape::pair;
    }

    template <bool second>
    LINATTN_DEVICE void read(int position, int turn) {
        Out out = {};
        const RowFragments<parts, steps, keeps_rows, decltype(row_tile<second>())> rows(row_tile<second>(),
                                                                                        row_group_ * 16);
        if (call_.sums) {
            const int end = call_.backwards ? C / 16 : row_group_ + 1;
            LINATTN_UNROLL_NONE
            for (int j = call_.backwards ? row_group_ : 0; j < end; ++j) add_block<second>(out, rows, j);
        }
        add_state<second>(out, rows);
        this->template finish<second>(out, position, turn);
    }

    // out += (a . b + bias) c for the 16 keys of block j.
    template <bool second, class Rows>
    LINATTN_DEVICE void add_block(Out& out, const Rows& rows, int j) {
        const auto keys = key_tile<second>();
        const auto values = value_tile<second>();
        float scores[2][4] = {};
        load_ahead<steps>([&](int k) { return keys.right_transposed(j * 16, k * 16); },
                          [&](int k, const RightFragment<parts>& right) {
                              const LeftFragment<parts> left = rows(k);
                              multiply<parts>(scores[0], left, right, 0);
                              multiply<parts>(scores[1], left, right, 1);
                          });
        if (has_bias<second>()) add_bias(scores, j);
        if (j == row_group_) mask(scores, j);
        const LeftFragment<parts> left = left_of<parts>(scores);
        multiply_columns<1>(
            out, [&](int) { return left; },
            [&](int, int column) { return values.template right<narrow>(j * 16, column); });
        add_weights(out, left, values, j * 16);
    }

    // Adds the bias of each row, or of each key.
    LINATTN_DEVICE void add_bias(float (&scores)[2][4], int j) const {
        const bool of_row = call_.bias == Bias::of_row;
        for_scores(scores, j, [&](float& score, int row, int key) { score += memory_.bias()[of_row ? row : key]; });
    }

    // Leaves only the keys that each row sees.
    LINATTN_DEVICE void mask(float (&scores)[2][4], int j) const {
        const bool backwards = call_.backwards;
        for_scores(scores, j, [&](float& score, int row, int key) {
            if (backwards ? key < row : key > row) score = 0.0f;
        });
    }

    // Calls `use(score, row, key)` for the scores of this lane.
    template <class Use>
    LINATTN_DEVICE void for_scores(float (&scores)[2][4], int j, const Use& use) const {
        const int lane = thread_index() % 32, row = row_group_ * 16 + lane / 4, key = j * 16 + lane % 4 * 2;
        LINATTN_UNROLL
        for (int n = 0; n < 2; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) use(scores[n][i], row + i / 2 * 8, key + n * 8 + i % 2);
        }
    }

    // out += a X, and what the bias adds to it.
    template <bool second, class Rows>
    LINATTN_DEVICE void add_state(Out& out, const Rows& rows) {
        const auto state = memory_.state();
        multiply_columns<steps>(out, rows, [&](int k, int column) {
            if constexpr (second) return state.right_transposed(column, k * 16);
            else return state.template right<narrow>(k * 16, column);
        });
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) add_weights(out, rows(k), state, k * 16);
        if (!has_bias<second>()) return;
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int n = 0; n < out_tiles; ++n) {
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) {
                const int row = row_group_ * 16 + lane / 4 + i / 2 * 8;
                const float weight = call_.bias == Bias::of_row ? memory_.bias()[row] : 1.0f;
                out[n][i] += weight * memory_.state_vector()[out_column(n) + lane % 4 * 2 + i % 2];
            }
        }
    }

    // out += left(k) right(k, column) for every k and all columns of this warp, two tiles at a time if there are two.
    template <int count, class Left, class Right>
    LINATTN_DEVICE void multiply_columns(Out& out, const Left& left, const Right& right) const {
        constexpr int wide = narrow ? 1 : 2, across = out_tiles / wide;
        static_assert(out_tiles % wide == 0);
        load_ahead<count * across>([&](int i) { return right(i / across, out_column(i % across * wide)); },
                                   [&](int i, const RightFragment<parts>& now) {
                                       const LeftFragment<parts> rows = left(i / across);
                                       LINATTN_UNROLL
                                       for (int half = 0; half < wide; ++half) {
                                           multiply<parts>(out[i % across * wide + half], rows, now, half);
                                       }
                                   });
    }

    // The sums of the weights, by the column after the slice.
    template <class TileOf>
    LINATTN_DEVICE void add_weights(Out& out, const LeftFragment<parts>& left, const TileOf& tile, int row) const {
        if constexpr (Shape::pair) return;
        else if (call_.finish == Finish::divide) {
            multiply<parts>(out[out_tiles], left, tile.template right<true>(row, E), 0);
        }
    }
};

}  // namespace linattn
