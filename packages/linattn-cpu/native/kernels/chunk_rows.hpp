// What the passes over chunks in the order of the sequence share, `ChunkedForward` and `ChunkedQueryGradient`: scratch
// for the keys and values of a chunk, and for the rows of one query head that reads them.
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
