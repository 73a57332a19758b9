// What the forward passes over chunks share: scratch for the keys and values of a chunk, and for the rows of one query
// head that reads them.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

template <class T>
struct ChunkRows {
    ChunkRows(Arena& arena, const Attention& call)
        : width(padded<T>(call.dim)),
          value_width(padded<T>(call.value_dim)),
          query(arena.take<T>(kChunk * width)),
          key(arena.take<T>(kChunk * width)),
          value(arena.take<T>(kChunk * value_width)),
          out(arena.take<T>(kChunk * value_width)),
          scores(arena.take<T>(kChunk * kChunk)),
          partial(arena.take<T>(kChunk * W<T>)),
          decay(arena, call) {}

    void load_keys(const Inputs<T>& inputs, std::int64_t first) {
        inputs.keys(first, kChunk, key);
        inputs.values(first, kChunk, value);
        decay.load_from(inputs, first);
    }

    // Decays the sums over the chunk and adds its keys and values. `key_columns` (D, kChunk) is scratch.
    void add_keys(const Sums<T>& sums, T* key_columns) const {
        transpose<T>(key, kChunk, width, width, key_columns, kChunk);
        add_key_columns(sums, key_columns);
    }
    // The same for keys that are transposed already.
    void add_key_columns(const Sums<T>& sums, T* key_columns) const {
        if (decay) scale_columns<T>(decay.to_end(), width, key_columns);
        sums.s.add(key_columns, value, kChunk, decay.across());
        add_weighted_rows<T>(sums, key, decay.to_end(), kChunk, decay.across());
    }

    const std::int64_t width, value_width;
    T* const query;
    T* const key;
    T* const value;
    T* const out;
    T* const scores;
    T* const partial;  // (kChunk, W)
    ChunkDecay<T> decay;
};

LINATTN_END
