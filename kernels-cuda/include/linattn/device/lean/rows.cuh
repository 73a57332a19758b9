// The rows of a chunk in the lean product: features, scores, normalizers, results.
#pragma once

#include "linattn/device/lean/state.cuh"

namespace linattn {

// The features of two neighbors.
template <FeatureMap map>
LINATTN_DEVICE u32 features_of(u32 pair) {
    if constexpr (map == FeatureMap::identity) return pair;
    return pack_bf16(feature<1>(map, low_bf16(pair)), feature<1>(map, high_bf16(pair)));
}
template <FeatureMap map>
LINATTN_DEVICE u32 features_of(u32 pair, float factor) {
    return pack_bf16(feature<1>(map, low_bf16(pair)) * factor, feature<1>(map, high_bf16(pair)) * factor);
}

// Scores begin with zeros, or with biases.
struct NoBias {
    LINATTN_DEVICE void operator()(float (&)[2][4], int) const {}
};

// 16 rows as left operands; where keys are added too, with their scores for the keys that they see. Of a pair, the
// `second` rows see values where the first see keys.
template <class Shape, bool second = false>
class LeanRows {
    static constexpr int D = Shape::D, C = Shape::C, steps = D / 16, blocks = C / 16;
    static constexpr int row_tile = second ? Shape::second : 0, key_tile = second ? Shape::value : Shape::key;
    static constexpr FeatureMap map = second || Shape::of_queries ? FeatureMap::identity : Shape::map;
    using Memory = LeanMemory<Shape>;

public:
    LINATTN_DEVICE LeanRows(const Memory& memory, int stage) : memory_(memory), stage_(stage) {
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) {
            rows_[k] = memory.template row<row_tile>(stage, k);
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) rows_[k].pairs[0][i] = features_of<map>(rows_[k].pairs[0][i]);
        }
        if (Shape::column_groups == 1) LINATTN_WARP_BARRIER();  // results are left where the rows were
    }

    LINATTN_DEVICE const LeftFragment<1>& operator[](int k) const { return rows_[k]; }

    // Finds the scores of the keys that block `own` sees, that of the rows themselves, from the first block on, or where
    // time runs backwards from the last; those of the others are zero. `start(scores, j)` puts the biases of block j.
    template <int step = 0, class Start = NoBias>
    LINATTN_DEVICE void find_scores(int own, const Start& start = {}) {
        constexpr int j = Shape::backwards ? blocks - 1 - step : step;
        float scores[2][4] = {};
        start(scores, j);
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) {
            const RightFragment<1> right = memory_.template keys<key_tile>(stage_, j, k);
            multiply<1>(scores[0], rows_[k], right, 0);
            multiply<1>(scores[1], rows_[k], right, 1);
        }
        scores_[j] = left_of<1>(scores);
        if (j == own) mask(scores_[j]);
        else if constexpr (step + 1 < blocks) find_scores<step + 1>(own, start);
    }

    // The sums of the weights of the rows lane / 4 and lane / 4 + 8.
    LINATTN_DEVICE void sum_weights(float (&sums)[2]) const {
        float sum[4] = {};
        LINATTN_UNROLL
        for (int k = 0; k < steps; k += 2) {
            u32 z[4];  // a right operand whose columns are all z
            memory_.vector(z, k);
            multiply_bf16(sum, rows_[k].pairs[0], z[0], z[1]);
            multiply_bf16(sum, rows_[k + 1].pairs[0], z[2], z[3]);
        }
        LINATTN_UNROLL
        for (int j = 0; j < blocks && Shape::sums; ++j) multiply_bf16(sum, scores_[j].pairs[0], ones, ones);
        sums[0] = sum[0];
        sums[1] = sum[2];
    }

    // Multiplies the weights of the rows lane / 4 or lane / 4 + 8 with a power of two.
    LINATTN_DEVICE void scale(int half, float factor) {
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) scale(rows_[k], half, factor);
        LINATTN_UNROLL
        for (int j = 0; j < blocks && Shape::sums; ++j) scale(scores_[j], half, factor);
    }

    // out += rows X for two tiles of columns.
    LINATTN_DEVICE void add_state(float (&out)[2][4], int n) const {
        LINATTN_UNROLL
        for (int k = 0; k < steps; ++k) {
            const RightFragment<1> right = second ? memory_.transposed_state(k, n) : memory_.state(k, n);
            multiply<1>(out[0], rows_[k], right, 0);
            multiply<1>(out[1], rows_[k], right, 1);
        }
    }

    // out += scores values for the 16 keys of block j and two tiles of columns.
    LINATTN_DEVICE void add_values(float (&out)[2][4], const RightFragment<1>& values, int j) const {
        multiply<1>(out[0], scores_[j], values, 0);
        multiply<1>(out[1], scores_[j], values, 1);
    }

private:
    LINATTN_DEVICE static void scale(LeftFragment<1>& left, int half, float factor) {
        LINATTN_UNROLL
        for (int i = half; i < 4; i += 2) {
            u32& pair = left.pairs[0][i];
            pair = pack_bf16(low_bf16(pair) * factor, high_bf16(pair) * factor);
        }
    }

    // Sets the scores of keys that a row does not see to zero, in the block on the diagonal.
    LINATTN_DEVICE static void mask(LeftFragment<1>& scores) {
        const int lane = thread_index() % 32, row = lane / 4, key = lane % 4 * 2;
        u32 seen;
        if (Shape::backwards) seen = key >= row ? 0xffffffffu : key + 1 >= row ? 0xffff0000u : 0u;
        else seen = key + 1 <= row ? 0xffffffffu : key <= row ? 0x0000ffffu : 0u;
        scores.pairs[0][0] &= seen;
        scores.pairs[0][Shape::backwards ? 1 : 2] = 0;
        scores.pairs[0][3] &= seen;
    }

    const Memory& memory_;
    int stage_;
    LeftFragment<1> rows_[steps];
    LeftFragment<1> scores_[Shape::sums ? blocks : 1] = {};
};

}  // namespace linattn
