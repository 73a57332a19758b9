// Causal attention chunk by chunk, where several query heads read one state or the state decays.
//
// Within a chunk every query meets every key by a triangle of scores; what came before is read from S and z.
// The keys are added once for all query heads. Decay multiplies the scores, what is read and what is left.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

// One thread's scratch, and the pass over a part of one item.
template <class T>
class ChunkedForward {
public:
    ChunkedForward(Arena& arena, const AttentionForward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          decay_(arena, call),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          query_(arena.take<T>(kChunk * width_)),
          key_(arena.take<T>(kChunk * width_)),
          key_columns_(arena.take<T>(kChunk * width_)),
          value_(arena.take<T>(kChunk * value_width_)),
          scores_(arena.take<T>(kChunk * kChunk)),
          out_(arena.take<T>(kChunk * value_width_)),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    // The positions of the range, from the sums before it to those after it.
    void run(const Item& item, Range range) {
        const Item part = item.up_to(range.high);
        const Inputs<T> inputs(call_, part);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            inputs.keys(first, kChunk, key_);
            inputs.values(first, kChunk, value_);
            decay_.load_from(inputs, first);
            transpose<T>(key_, kChunk, width_, width_, key_columns_, kChunk);
            const int count = rows_at(first, range.high, kChunk);
            for (std::int64_t group = 0; group < groups_of(call_); ++group) read(part.read_by(group), first, count);
            if (decay_) scale_columns<T>(decay_.to_end(), width_, key_columns_);
            sums.s.add(key_columns_, value_, kChunk, decay_.across());
            add_weighted_rows<T>(sums, key_, decay_.to_end(), kChunk, decay_.across());
        }
    }

private:
    const AttentionForward& call_;

public:
    const Sums<T> sums;

private:
    // The outputs of one query head.
    void read(const Item& item, std::int64_t first, int count) {
        Inputs<T>(call_, item).queries(first, kChunk, query_);
        scores<T>(query_, width_, key_columns_, call_.dim, Triangle::lower, scores_);
        decay_.within(scores_);
        if (decay_) scale_rows<T>(decay_.from_start(), kChunk, width_, query_);
        T n[kChunk];
        partial_products<T>(query_, sums.z, width_, partial_);
        add_partial_sums<T>(scores_, partial_);
        sum_rows<T>(partial_, n);
        multiply_both<T>(sums.s.times(query_, call_.dim), {scores_, kChunk, 1, value_, value_width_, kChunk},
                         Triangle::lower, kChunk, value_width_, out_, value_width_);
        const std::int64_t row = query_row(call_, item);
        write_outputs<T>(call_, out_rows(call_.out, row, call_.value_dim, call_.value_dtype), first, count, n, out_,
                         static_cast<T*>(call_.normalizer) + row);
    }

    ChunkDecay<T> decay_;
    const std::int64_t width_, value_width_;
    T *const query_, *const key_, *const key_columns_, *const value_, *const scores_, *const out_, *const partial_;
};

LINATTN_END
