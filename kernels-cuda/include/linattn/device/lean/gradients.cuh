// The causal gradients by the lean product: of queries, of keys and values in a pair, and the sums over queries with
// which the pairs of segments begin.
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
    static constexpr bool of_queries = Shape::of_queries;

    using Block::call_, Block::memory_, Block::state_, Block::row_, Block::rows_, Block::keys_, Block::first_query_;
    using Keys = typename LeanState<Shape>::Keys;

public:
    LINATTN_DEVICE LeanGradients(const Product& call, unsigned char* shared) : Block(call, shared) {
        if constexpr (!of_queries) {
            LINATTN_UNROLL
            for (int stage = 0; stage < Shape::stages; ++stage) {
                if (thread_index() < C) *memory_.part_of_bias(stage, 2, thread_index()) = 0;
            }
        }
    }

    LINATTN_DEVICE void run() { Block::run(*this); }

    // The normalizers and biases of a chunk: where queries are rows, of those of this lane, else of a row that this
    // thread copies.
    LINATTN_DEVICE void fetch(int i) {
        LINATTN_UNROLL
        for (int half = 0; half < (of_queries ? 2 : 1); ++half) {
            const int position = i * C + (of_queries ? row_ + thread_index() % 32 / 4 + half * 8 : copied_row());
            const bool exists = position < rows_;
            next_[half] = exists && divides() ? call_.normalizer[first_query_ + position] : 1.0f;
            next_bias_[half] = exists && call_.row_bias != nullptr ? call_.row_bias[first_query_ + position] : 0.0f;
        }
    }

    LINATTN_DEVICE void prepare(int stage, int i) {
        if constexpr (of_queries) {
            LINATTN_UNROLL
            for (int half = 0; half < 2; ++half) {
                normalizer_[half] = next_[half];
                bias_[half] = next_bias_[half];
            }
            this->prepare_keys(stage, i);
        } else {
            leave_bias(stage, next_bias_[0] * next_[0]);
            const float factor = fast_inverse(next_[0]);
            float factors[4];
            LINATTN_UNROLL
            for (int pass = 0; pass < 4; ++pass) factors[pass] = shuffle(factor, (thread_index() % 32 & ~7) + pass);
            this->template change_copied<Shape::key>(
                stage, [&](u32 pair, int pass) { return features_of<Shape::map>(pair, factors[pass]); });
            if (!this->is_whole(i)) this->template clear_copied<Shape::key>(stage, this->rows_below(rows_, i));
        }
    }

    LINATTN_DEVICE void compute(int stage, int i) {
        if constexpr (of_queries) compute_queries(stage, i);
        else if constexpr (Shape::pair) compute_pair(stage);
        else add_queries(stage);
        if constexpr (Shape::reads) {
            LINATTN_BLOCK_BARRIER();  // all warps are done with the state before this chunk
            state_.publish(memory_);
            this->store(call_.result, stage, i);
            if constexpr (Shape::pair) this->template store<Shape::second>(call_.second_result, stage, i);
        }
    }

private:
    LINATTN_DEVICE bool divides() const { return of_queries ? call_.normalize : call_.value.divided; }

    // Of the four rows of 16 bytes that a thread copies, the one whose numbers it fetches: eight threads have the same
    // rows.
    LINATTN_DEVICE static int copied_row() { return thread_index() / 8 + thread_index() % 4 * 16; }

    LINATTN_DEVICE void leave_bias(int stage, float bias) const {
        if (thread_index() % 8 >= 4) return;
        const int row = copied_row();
        *memory_.bias(row) = bias;
        const u32 high = pack_bf16(bias, 0.0f), low = pack_bf16(bias - low_bf16(high), 0.0f);
        *memory_.part_of_bias(stage, 0, row) = static_cast<u16>(high);
        *memory_.part_of_bias(stage, 1, row) = static_cast<u16>(low);
    }

    LINATTN_DEVICE void add_queries(int stage) {
        Keys keys;
        this->load_keys(keys, stage);
        this->template add_keys<0>(keys, stage);
        state_.add_biased_vector(keys, memory_, stage);
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
            begin_columns(scores, memory_.bias(j * 16 + own_column()), 8);
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
            for_pairs(out, features[n], [](float& x, float phi) { x *= derivative_by_feature(Shape::map, phi); });
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
            for_pairs(out, memory_.template row<Shape::second>(stage, n), [](float& x, float q) {
                // e^q below zero, where it is less than 1.
                const float phi = Shape::map == FeatureMap::elu ? below_zero<1>(q) : q;
                x *= derivative_by_feature(Shape::map, phi);
            });
            memory_.leave(stage, n, out);
        }
        LINATTN_UNROLL
        for (int k = 0; k < C / 16; ++k) keys[k] = memory_.template key_columns<Shape::value>(stage, k);
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
    }

    // All rows of two tiles of columns begin with a number of each column: with `first` and the next, in this lane, and
    // with those that are `tile` numbers further.
    LINATTN_DEVICE static void begin_columns(float (&x)[2][4], const float* first, int tile) {
        LINATTN_UNROLL
        for (int j = 0; j < 8; ++j) x[j / 4][j % 4] = first[j / 4 * tile + j % 2];
    }
    LINATTN_DEVICE void begin_with_vector(float (&x)[2][4], int n) const {
        constexpr int tile = Shape::vector_rows / 4;
        begin_columns(x, memory_.vector_number(own_column()) + n * 2 * tile, tile);
    }
    LINATTN_DEVICE static int own_column() { return thread_index() % 4 * 2; }

    // Calls `use(x, y)` for sums and what a left operand has in the same places.
    template <class Use>
    LINATTN_DEVICE static void for_pairs(float (&x)[2][4], const LeftFragment<1>& y, const Use& use) {
        LINATTN_UNROLL
        for (int j = 0; j < 4; ++j) {
            use(x[j / 2][j % 2 * 2], low_bf16(y.pairs[0][j]));
            use(x[j / 2][j % 2 * 2 + 1], high_bf16(y.pairs[0][j]));
        }
    }

    float next_[of_queries ? 2 : 1], next_bias_[of_queries ? 2 : 1];  // of the chunk that is copied
    float normalizer_[2], bias_[2];                                   // of this chunk
};

}  // namespace linattn
