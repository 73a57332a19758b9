// Causal attention chunk by chunk, for calls in which several query heads read one state.
//
// Within a chunk there is a triangular matrix of scores of all queries and keys; earlier keys are read from S and z.
// The keys are added once for all query heads. Decay multiplies the scores, the queries that read the state, the keys
// that are added to it, and the state.
#pragma once

#include "chunk_rows.hpp"

LINATTN_BEGIN

// One thread's scratch, and the pass over a part of one item.
template <class T>
class ChunkedForward {
public:
    ChunkedForward(Arena& arena, const AttentionForward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          chunk_(arena, call),
          key_columns_(arena.take<T>(kChunk * chunk_.width)) {}

    // The positions of the range, from the sums before it to those after it.
    void run(const Item& item, Range range) {
        const Item part = item.up_to(range.high);
        const Inputs<T> inputs(call_, part);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            chunk_.load_keys(inputs, first);
            transpose<T>(chunk_.key, kChunk, chunk_.width, chunk_.width, key_columns_, kChunk);
            const int count = rows_at(first, range.high, kChunk);
            for (std::int64_t group = 0; group < groups_of(call_); ++group) read(part.read_by(group), first, count);
            add_keys();
        }
    }

private:
    const AttentionForward& call_;

public:
    const Sums<T> sums;

private:
    // Decays the sums over the chunk and adds its keys and values.
    void add_keys() const {
        const ChunkDecay<T>& decay = chunk_.decay;
        if (decay) scale_columns<T>(decay.to_end(), chunk_.width, key_columns_);
        sums.s.add(key_columns_, chunk_.value, kChunk, decay.across());
        add_weighted_rows<T>(sums, chunk_.key, decay.to_end(), kChunk, decay.across());
    }

    // The outputs of one query head.
    void read(const Item& item, std::int64_t first, int count) {
        const ChunkRows<T>& x = chunk_;
        Inputs<T>(call_, item).queries(first, kChunk, x.query);
        scores<T>(x.query, x.width, key_columns_, call_.dim, x.scores);
        x.decay.within(x.scores);
        if (x.decay) scale_rows<T>(x.decay.from_start(), kChunk, x.width, x.query);
        T n[kChunk];
        partial_products<T>(x.query, sums.z, x.width, x.partial);
        add_partial_sums<T>(x.scores, x.partial);
        sum_rows<T>(x.partial, n);
        multiply_both<T>(sums.s.times(x.query, call_.dim), {x.scores, kChunk, 1, x.value, x.value_width, kChunk},
                         Triangle::lower, kChunk, x.value_width, x.out, x.value_width);
        const std::int64_t row = query_row(call_, item);
        write_normalizers<T>(call_, first, count, n, static_cast<T*>(call_.normalizer) + row);
        write_outputs<T>(call_, out_rows(call_.out, row, call_.value_dim, call_.value_dtype), first, count, n, x.out);
    }

    ChunkRows<T> chunk_;
    T* const key_columns_;
};

LINATTN_END
