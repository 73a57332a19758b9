// The causal pass over bfloat16 tensors, on machines that multiply bfloat16 in pairs.
//
// What enters a product is rounded to bfloat16: phi(q), phi(k), the scores, and S as it is read. Sums,
// S itself, z and the normalizer are float32, and of the same rounded numbers as the outputs.
#pragma once

#include "causal_forward.hpp"
#include "pairs.hpp"

#ifdef __AVX512BF16__

LINATTN_BEGIN

class PairedCausalForward : public CausalForward<float> {
public:
    PairedCausalForward(Arena& arena, const AttentionForward& call)
        : CausalForward<float>(arena, call),
          state_(arena.take<Pair>(width_ / 2 * value_width_)),
          query_rows_(arena.take<Pair>(kChunk * width_ / 2)),
          key_rows_(arena.take<Pair>(kChunk * width_ / 2)),
          key_columns_(arena.take<Pair>(kChunk * width_ / 2)),
          key_pairs_(arena.take<Pair>(kChunk / 2 * width_)),
          value_pairs_(arena.take<Pair>(kChunk / 2 * value_width_)),
          score_rows_(arena.take<Pair>(kChunk * kChunk / 2)) {}

    // Whether the rows of pairs are whole vectors, and no state is returned: it would be of rounded
    // features.
    static bool takes(const AttentionForward& call) {
        return call.last.z == nullptr && call.query_dtype == Dtype::bfloat16 && call.value_dtype == Dtype::bfloat16 &&
               padded<float>(call.dim) % (2 * W<float>) == 0;
    }

private:
    void read() override {
        pair_rows(sums.s.sum, width_, value_width_, state_);
        pair_rows(tile_, kChunk, width_, key_pairs_);
        pair_rows(value_, kChunk, value_width_, value_pairs_);
        round_rows(query_, kChunk, width_, query_rows_);
        round_rows(tile_, kChunk, width_, key_rows_);
        sum_of_rows<float>(tile_, kChunk, width_, key_sum_);
        transpose_pairs(key_rows_, kChunk, width_ / 2, key_columns_);
        scores<Pair>(query_rows_, width_ / 2, key_columns_, width_ / 2, Triangle::lower, scores_);
        round_rows(scores_, kChunk, kChunk, score_rows_);
        multiply_both<Pair>({query_rows_, width_ / 2, 1, state_, value_width_, width_ / 2},
                            {score_rows_, kChunk / 2, 1, value_pairs_, value_width_, kChunk / 2}, Triangle::lower,
                            kChunk, value_width_, tile_, value_width_);
    }

    void add() override {
        accumulate<Pair>({key_pairs_, 1, width_, value_pairs_, value_width_, kChunk / 2}, width_, value_width_,
                         sums.s.sum, sums.s.compensation, value_width_);
        sums.add_to_z(key_sum_);
    }

    Pair* const state_;                                              // S, two rows side by side
    Pair *const query_rows_, *const key_rows_, *const key_columns_;  // pairs along D
    Pair *const key_pairs_, *const value_pairs_;                     // pairs along the chunk
    Pair* const score_rows_;
};

LINATTN_END

#endif
