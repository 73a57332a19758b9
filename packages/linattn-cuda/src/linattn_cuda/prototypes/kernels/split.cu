// Rung 5, `split`: the sequence is cut into segments, for few heads and long sequences.
//
// The idea. What a segment needs of all that came before is S and z at its start, and those are a sum: of phi(K)^T V
// over the segments before it, each of which can be had without knowing any other. So three kernels in a row:
//
//     segment_sums      every segment but the last, at once: its own phi(K)^T V, of keys and values alone
//     segment_starts    every number of S, at once: the sum of the segments before, in the sums' place
//     segment_outputs   every segment, at once: the walk of the rung below, from there on
//
// How to think of it. It is the chunked rung's idea once more, a level up: chunks within a block, segments between
// blocks. Keys and values are read twice, half as much traffic again, for as many times the parallelism as there are
// segments. The sums of a segment are D x (M + 8) float32 numbers, written and read twice: a tenth of the traffic of a
// segment of 1,024 positions.
//
// What binds. Memory again, at any number of heads. What the ladder leaves out is in kernels-cuda: float32 accuracy on
// tensor cores, gradients, lengths, packing, states in and out.
#pragma once

#include "overlapped.cu"

namespace linattn::prototypes {

template <int D, int M>
constexpr int segment_numbers() {
    return D * (M + 8);
}

// Where the sums of this block's head and segment lie; of each head there are `segments`.
template <int D, int M>
LINATTN_DEVICE float* segment_sums_at(const Call& call, Int segment) {
    const Int segments = (call.length + call.segment - 1) / call.segment;
    return call.sums + (block_x() * segments + segment) * segment_numbers<D, M>();
}

// The walk without queries and outputs.
template <Dtype dtype, int D, int M>
LINATTN_KERNEL(chunk_threads, 1)
segment_sums(Call call) {
    LINATTN_SHARED(shared);
    const ChunkTiles<D, M> tiles(shared);
    const RawChunk<dtype, D, M> raw(shared + ChunkTiles<D, M>::bytes);
    const Heads<dtype> head(call);
    RegisterState<D, M> state;
    const auto fetch = [&](Int start) {
        raw.keys.fetch(head.key, start);
        raw.values.fetch(head.value, start);
        copies_commit();
    };

    write_ones<M>(tiles.values);
    const Int begin = block_y() * call.segment, end = begin + call.segment;
    fetch(begin);
    for (Int start = begin; start < end; start += chunk) {
        copies_wait<0>();
        LINATTN_BLOCK_BARRIER();
        raw.keys.to_features(tiles.keys, head.key, call.map, start);
        raw.values.to_values(tiles.values);
        LINATTN_BLOCK_BARRIER();
        if (start + chunk < end) fetch(start + chunk);
        state.add(tiles);
    }
    float* sums = segment_sums_at<D, M>(call, block_y());
    state.for_each_pair([&](int row, int column, float x, float y) {
        sums[row * (M + 8) + column] = x;
        sums[row * (M + 8) + column + 1] = y;
    });
}

// A thread a number: what a segment has added becomes what was there before it.
template <Dtype dtype, int D, int M>
LINATTN_KERNEL(256, 1)
segment_starts(Call call) {
    const int number = block_y() * 256 + thread_index();
    if (number >= segment_numbers<D, M>()) return;
    float sum = 0.0f;
    for (Int segment = 0; segment * call.segment < call.length; ++segment) {
        float& here = segment_sums_at<D, M>(call, segment)[number];
        const float added = (segment + 1) * call.segment < call.length ? here : 0.0f;
        here = sum;
        sum += added;
    }
}

template <Dtype dtype, int D, int M>
LINATTN_KERNEL(chunk_threads, 1)
segment_outputs(Call call) {
    LINATTN_SHARED(shared);
    RegisterState<D, M> state;
    const float* sums = segment_sums_at<D, M>(call, block_y());
    state.for_each_pair([&](int row, int column, float& x, float& y) {
        x = sums[row * (M + 8) + column];
        y = sums[row * (M + 8) + column + 1];
    });
    const Int begin = block_y() * call.segment, end = begin + call.segment;
    walk<dtype>(call, shared, begin, end < call.length ? end : call.length, state);
}

}  // namespace linattn::prototypes
