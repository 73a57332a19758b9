// The causal gradients by the lean product: of queries, of keys and values in a pair, and the sums over queries with
// which the pairs of segments begin. In segments, the pass of the queries takes these sums on its way.
//
// - The rows of G, the upstream gradient, are not divided by n. The result of a query is divided at the end; where
//   queries are keys, phi(q) / n is written in place of q. So biases are n h instead of h. The pass of the queries finds
//   n h = n b - G . o, where b is `row_bias`.
// - Scores begin with the biases, results with what the biases make of the state's vector. The products of biases and
//   keys are by the tensor cores, of biases in two parts.
// - A pair computes the gradients of values first, and in these loops the state. Then those of keys, for which the state
//   is read with its rows as columns. Each is multiplied by the derivative of phi at k, which follows from phi(k); that is
//   still in registers.
#pragma once

#include "linattn/device/lean/block.cuh"

namespace linattn {

template <class Shape>
class LeanGradients : LeanBlock<Shape> {
    using Block = LeanBlock<Shape>;
    static_assert(Shape::gradients && Shape::column_groups == 1, "of 64 dims");
    static constexpr int D = Shape::D, C = Shape::C;
    static constexpr bool of_queries = Shape::of_queries, sums_queries = Shape::sums_queries;
    static constexpr int result_tile = sums_queries ? Shape::third : 0;  // sums need the gradients in tile 0

    using Block::call_, Block::memory_, Block::state_, Block::row_, Block::rows_, Block::keys_, Block::first_query_;
    using Keys = typename LeanState<Shape>::Keys;

public:
    LINATTN_DEVICE LeanGradients(const Product& call, unsigned char* shared) : Block(call, shared) {
        if constexpr (!of_queries || sums_queries) {
            LINATTN_UNROLL
            for (int stage = 0; stage < Shape::stages; ++stage) {
                if (thread_index() < C) *memory_.part_of_bias(stage, 2, thread_index()) = 0;
            }
        }
    }

    LINATTN_DEVICE void run() {
        if constexpr (!sums_queries) {
            Block::run(*this);
        } else {
            query_sums_.load(call_.query_sums, nullptr, nullptr);
            Block::run(*this);
            const Work work = this->work_of_block();
            query_sums_.store(call_.query_sums, work.matrix(call_, call_.query_sums),
                              work.vector(call_, call_.query_sums));
        }
    }

    // The normalizers and biases of a chunk: where queries are rows, of those of this lane; where they are keys, of a row
    // that this thread copies.
    LINATTN_DEVICE void fetch(int i) {
        if constexpr (of_queries) {
            LINATTN_UNROLL
            for (int half = 0; half < 2; ++half) {
                const int position = i * C + row_ + thread_index() % 32 / 4 + half * 8;
                next_[half] = normalizer_at(position);
                next_bias_[half] = bias_at(position);
            }
        }
        if constexpr (!of_queries || sums_queries) next_copied_ = normalizer_at(i * C + copied_row());
        if constexpr (!of_queries) next_bias_[0] = bias_at(i * C + copied_row());
    }

    LINATTN_DEVICE void prepare(int stage, int i) {
        if constexpr (of_queries) {
            LINATTN_UNROLL
            for (int half = 0; half < 2; ++half) {
                normalizer_[half] = next_[half];
                bias_[half] = next_bias_[half];
            }
            this->prepare_keys(stage, i);
            if constexpr (sums_queries) prepare_queries<Shape::second>(stage, i);
        } else {
            if (thread_index() % 8 < 4) leave_bias(stage, copied_row(), next_bias_[0] * next_copied_);
            prepare_queries<Shape::key>(stage, i);
        }
    }

    LINATTN_DEVICE void compute(int stage, int i) {
        if constexpr (of_queries) compute_queries(stage, i);
        else if constexpr (Shape::pair) compute_pair(stage);
        else add_queries<Shape::key, Shape::value>(state_, stage);
        if constexpr (Shape::reads) {
            LINATTN_BLOCK_BARRIER();  // all warps are done with the state before this chunk
            state_.publish(memory_);
            this->template store<result_tile>(call_.result, stage, i);
            if constexpr (Shape::pair) this->template store<Shape::second>(call_.second_result, stage, i);
            if constexpr (sums_queries) add_queries<Shape::second, 0>(query_sums_, stage);
        }
    }

private:
    LINATTN_DEVICE bool divides() const { return of_queries ? call_.normalize : call_.value.divided; }

    LINATTN_DEVICE float normalizer_at(int position) const {
        return position < rows_ && divides() ? call_.normalizer[first_query_ + position] : 1.0f;
    }
    LINATTN_DEVICE float bias_at(int position) const {
        return position < rows_ && call_.row_bias != nullptr ? call_.row_bias[first_query_ + position] : 0.0f;
    }

    // Of the four rows of 16 bytes that a thread copies, the one whose numbers it fetches: eight threads have the same
    // rows.
    LINATTN_DEVICE static int copied_row() { return thread_index() / 8 + thread_index() % 4 * 16; }

    // Turns the queries that this thread has copied into phi(q) / n.
    template <int tile>
    LINATTN_DEVICE void prepare_queries(int stage, int i) const {
        const float factor = fast_inverse(next_copied_);
        float factors[4];
        LINATTN_UNROLL
        for (int pass = 0; pass < 4; ++pass) factors[pass] = shuffle(factor, (thread_index() % 32 & ~7) + pass);
        this->template change_copied<tile>(
            stage, [&](u32 pair, int pass) { return features_of<Shape::map>(pair, factors[pass]); });
        if (!this->is_whole(i)) this->template clear_copied<tile>(stage, this->rows_below(rows_, i));
    }

    LINATTN_DEVICE void leave_bias(int stage, int row, float bias) const {
        if (Shape::pair) *memory_.bias(stage, row) = bias;
        const u32 high = pack_bf16(bias, 0.0f), low = pack_bf16(bias - low_bf16(high), 0.0f);
        *memory_.part_of_bias(stage, 0, row) = static_cast<u16>(high);
        *memory_.part_of_bias(stage, 1, row) = static_cast<u16>(low);
    }

    // Adds queries with their gradients and biases to a state.
    template <int tile, int gradient_tile>
    LINATTN_DEVICE void add_queries(LeanState<Shape>& state, int stage) const {
        Keys keys;
        this->template load_keys<tile>(keys, stage);
        this->template add_keys<0, gradient_tile>(state, keys, stage);
        state.add_biased_vector(keys, memory_, stage);
    }

    // Whether this warp's rows see the k-th 16 keys.
    LINATTN_DEVICE bool sees(int k) const { return Shape::backwards ? k * 16 >= row_ : k * 16 <= row_; }

    // Adds what rows see of values to `out`, and the keys' products with these to the state.
    template <class Rows>
    LINATTN_DEVICE void add_values(float (&out)[2][4], const Rows& rows, const Keys& keys, int stage, int n) {
        float sum[2][4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < C / 16; ++k) {
            const RightFragment<1> values = memory_.values(stage, k, n);
            if (sees(k)) rows.add_values(out, values, k);
            multiply<1>(sum[0], keys[k], values, 0);
            multiply<1>(sum[1], keys[k], values, 1);
        }
        state_.add(n, sum);
    }

    LINATTN_DEVICE void compute_pair(int stage) {
        LeanRows<Shape> rows(memory_, stage);
        rows.find_scores(row_ / 16);
        Keys keys;
        this->load_keys(keys, stage);
        LINATTN_UNROLL
        for (int n = 0; n < D / 16; ++n) {
            float out[2][4] = {};
            rows.add_state(out, n);
            add_values(out, rows, keys, stage, n);
            memory_.leave(stage, n, out);
        }
        state_.add_biased_vector(keys, memory_, stage);
        compute_second(stage, rows);
    }

    LINATTN_DEVICE void compute_second(int stage, const LeanRows<Shape>& features) {
        LeanRows<Shape, true> rows(memory_, stage);
        rows.find_scores(row_ / 16, [&](float (&scores)[2][4], int j) {
            begin_columns(scores, memory_.bias(stage, own_column()) + j * 2 * vector_tile);
        });
        LINATTN_UNROLL
        for (int n = 0; n < D / 16; ++n) {
            float out[2][4];
            begin_with_vector(out, n);
            rows.add_state(out, n);
            LINATTN_UNROLL
            for (int k = 0; k < C / 16; ++k) {
                if (sees(k)) rows.add_values(out, memory_.template values<Shape::key>(stage, k, n), k);
            }
            for_pairs(out, features[n], [](float& x, float phi, int) { x *= derivative_by_feature(Shape::map, phi); });
            memory_.template leave<Shape::second>(stage, n, out);
        }
    }

    LINATTN_DEVICE void compute_queries(int stage, int i) {
        LeanRows<Shape> rows(memory_, stage);
        float factors[2], biases[2];
        find_biases(biases, factors, rows, stage, i);
        rows.find_scores(row_ / 16, [&](float (&scores)[2][4], int) {
            LINATTN_UNROLL
            for (int j = 0; j < 8; ++j) scores[j / 4][j % 4] = biases[j % 4 / 2];
        });
        Keys keys;
        this->load_keys(keys, stage);
        LINATTN_UNROLL
        for (int n = 0; n < D / 16; ++n) {
            float out[2][4];
            begin_with_vector(out, n);
            LINATTN_UNROLL
            for (int j = 0; j < 8; ++j) out[j / 4][j % 4] *= biases[j % 4 / 2];
            rows.add_state(out, n);
            add_values(out, rows, keys, stage, n);
            LINATTN_UNROLL
            for (int j = 0; j < 8; ++j) out[j / 4][j % 4] *= factors[j % 4 / 2];
            for_pairs(out, memory_.template row<Shape::second>(stage, n), [&](float& x, float q, int half) {
                // phi(q) from phi(q) / n; or e^q below zero, where it is less than 1.
                const bool elu = Shape::map == FeatureMap::elu;
                const float phi = sums_queries ? q * normalizer_[half] : elu ? below_zero<1>(q) : q;
                x *= derivative_by_feature(Shape::map, phi);
            });
            memory_.template leave<result_tile>(stage, n, out);
        }
        this->template load_keys<Shape::value>(keys, stage);
        state_.add_vector(keys);
    }

    // n h and 1 / n of the rows lane / 4 and lane / 4 + 8; writes h.
    LINATTN_DEVICE void find_biases(float (&biases)[2], float (&factors)[2], const LeanRows<Shape>& rows, int stage,
                                    int i) const {
        float products[2] = {};
        if (call_.normalize) find_products(products, rows, stage);
        const int lane = thread_index() % 32, position = i * C + row_ + lane / 4;
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            factors[half] = fast_inverse(normalizer_[half]);
            biases[half] = bias_[half] * normalizer_[half] - products[half];
            if (sums_queries && lane % 4 == 0) leave_bias(stage, row_ + lane / 4 + half * 8, biases[half]);
            if (lane % 4 == 0 && position + half * 8 < rows_) {
                call_.out_bias[first_query_ + position + half * 8] = bias_[half] - products[half] * factors[half];
            }
        }
    }

    // G . o of two rows: the diagonal of their products with all of these outputs.
    LINATTN_DEVICE void find_products(float (&products)[2], const LeanRows<Shape>& rows, int stage) const {
        float sums[2][4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < D / 16; ++k) {
            const RightFragment<1> outputs = memory_.template row_columns<Shape::third>(stage, k);
            multiply<1>(sums[0], rows[k], outputs, 0);
            multiply<1>(sums[1], rows[k], outputs, 1);
        }
        const int lane = thread_index() % 32, row = lane / 4, owner = row * 4 + row / 2;
        products[0] = shuffle(row % 2 == 0 ? sums[0][0] : sums[0][1], owner);
        products[1] = shuffle(row % 2 == 0 ? sums[1][2] : sums[1][3], owner);
        if (sums_queries) LINATTN_WARP_BARRIER();  // results are left where the outputs were
    }

    // All rows of two tiles of columns begin with a number of each column: with `first` and the next, in this lane, and
    // with those of the next tile, two rows of padding further.
    static constexpr int vector_tile = Shape::vector_rows / 4;
    LINATTN_DEVICE static void begin_columns(float (&x)[2][4], const float* first) {
        LINATTN_UNROLL
        for (int j = 0; j < 8; ++j) x[j / 4][j % 4] = first[j / 4 * vector_tile + j % 2];
    }
    LINATTN_DEVICE void begin_with_vector(float (&x)[2][4], int n) const {
        begin_columns(x, memory_.vector_number(own_column()) + n * 2 * vector_tile);
    }
    LINATTN_DEVICE static int own_column() { return thread_index() % 4 * 2; }

    // Calls `use(x, y, half)` for sums and what a left operand has in the same places, in this lane's first or second row.
    template <class Use>
    LINATTN_DEVICE static void for_pairs(float (&x)[2][4], const LeftFragment<1>& y, const Use& use) {
        LINATTN_UNROLL
        for (int j = 0; j < 4; ++j) {
            use(x[j / 2][j % 2 * 2], low_bf16(y.pairs[0][j]), j % 2);
            use(x[j / 2][j % 2 * 2 + 1], high_bf16(y.pairs[0][j]), j % 2);
        }
    }

    float next_[2], next_bias_[2], next_copied_;  // of the chunk that is copied
    float normalizer_[2], bias_[2];               // of this chunk
    LeanState<Shape> query_sums_;
};

}  // namespace linattn
