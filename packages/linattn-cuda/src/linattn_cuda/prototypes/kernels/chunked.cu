// Rung 2, `chunked`: a chunk of C positions a step instead of one.
//
// The idea. What position i sees are the positions before its chunk, all of them in S, and those of its own chunk up to
// i. So out = mask(phi(Q) phi(K)^T) V + phi(Q) S, over (phi(Q) phi(K)^T masked, times ones) + phi(Q) z, for C rows at
// once, and then S += phi(K)^T V. It is the quadratic form within a chunk and the recurrent form between chunks: four
// small matrix products in place of C steps that wait for one another. A position costs 2 (C (D + M) + 2 D M)
// operations instead of 4 D M, half as many again at C = 32 and D = M = 64, and 4 / C barriers instead of 2.
//
// How to think of it. The threads share a product's outputs; each of them is a sum of its own. As on the first rung,
// the column of ones beside V carries z and the denominators.
//
// What binds. Shared memory. An output of a product costs two reads from shared memory for each multiplication, and a
// multiprocessor multiplies 128 times a cycle but reads 32 words. Tiles in registers would ease that; the tensor cores
// of the next rung end it.
#pragma once

#include "ladder.cuh"

namespace linattn::prototypes {

// Everything of one chunk in shared memory. Keys and queries have an odd pitch: a warp reads down a column of them.
template <int D, int M>
struct ChunkedTiles {
    static constexpr int C = D + M > 128 ? 16 : 32, threads = 256;
    static constexpr int values = M + 1;  // the last column is of ones

    float queries[C][D + 1], keys[C][D + 1];  // phi(q), phi(k)
    float value[C][values], scores[C][C];
    float state[D][values];
};

template <Dtype dtype, int D, int M>
LINATTN_DEVICE void load_chunk(ChunkedTiles<D, M>& tiles, const Heads<dtype>& head, Int start) {
    using Tiles = ChunkedTiles<D, M>;
    for (int x = thread_index(); x < Tiles::C * D; x += Tiles::threads) {
        const int i = x / D, d = x % D;
        tiles.queries[i][d] = head.query.read_feature(head.map, start + i, d);
        tiles.keys[i][d] = head.key.read_feature(head.map, start + i, d);
    }
    for (int x = thread_index(); x < Tiles::C * Tiles::values; x += Tiles::threads) {
        const int i = x / Tiles::values, m = x % Tiles::values;
        tiles.value[i][m] = m < M ? head.value.read(start + i, m) : 1.0f;
    }
}

// scores[i][j] = phi(q_i) . phi(k_j) for j <= i, else 0.
template <int D, int M>
LINATTN_DEVICE void masked_scores(ChunkedTiles<D, M>& tiles) {
    constexpr int C = ChunkedTiles<D, M>::C;
    for (int x = thread_index(); x < C * C; x += ChunkedTiles<D, M>::threads) {
        const int i = x / C, j = x % C;
        float sum = 0.0f;
        for (int d = 0; j <= i && d < D; ++d) sum += tiles.queries[i][d] * tiles.keys[j][d];
        tiles.scores[i][j] = sum;
    }
}

// Column m of row i of the numerators; m = M gives the denominator.
template <int D, int M>
LINATTN_DEVICE float numerator(const ChunkedTiles<D, M>& tiles, int i, int m) {
    float sum = 0.0f;
    for (int j = 0; j < ChunkedTiles<D, M>::C; ++j) sum += tiles.scores[i][j] * tiles.value[j][m];
    for (int d = 0; d < D; ++d) sum += tiles.queries[i][d] * tiles.state[d][m];
    return sum;
}

// The denominator of a row, its terms shared by the lanes of a warp.
template <int D, int M>
LINATTN_DEVICE float denominator(const ChunkedTiles<D, M>& tiles, int i) {
    float sum = 0.0f;
    for (int j = thread_index() % 32; j < ChunkedTiles<D, M>::C; j += 32) sum += tiles.scores[i][j];
    for (int d = thread_index() % 32; d < D; d += 32) sum += tiles.queries[i][d] * tiles.state[d][M];
    for (int mask = 16; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    return sum;
}

// A warp a row.
template <Dtype dtype, int D, int M>
LINATTN_DEVICE void write_outputs(const ChunkedTiles<D, M>& tiles, const Heads<dtype>& head, Int start) {
    using Tiles = ChunkedTiles<D, M>;
    const int lane = thread_index() % 32;
    for (int i = thread_index() / 32; i < Tiles::C; i += Tiles::threads / 32) {
        const float normalizer = denominator(tiles, i) + head.eps;
        if (lane == 0 && start + i < head.query.length) head.normalizer[start + i] = normalizer;
        for (int m = lane; m < M; m += 32) head.out.write(start + i, m, numerator(tiles, i, m) / normalizer);
    }
}

// S += phi(K)^T V, z with it.
template <int D, int M>
LINATTN_DEVICE void add_to_state(ChunkedTiles<D, M>& tiles) {
    using Tiles = ChunkedTiles<D, M>;
    for (int x = thread_index(); x < D * Tiles::values; x += Tiles::threads) {
        const int d = x / Tiles::values, m = x % Tiles::values;
        float sum = 0.0f;
        for (int j = 0; j < Tiles::C; ++j) sum += tiles.keys[j][d] * tiles.value[j][m];
        tiles.state[d][m] += sum;
    }
}

template <Dtype dtype, int D, int M>
LINATTN_KERNEL(256, 1)
chunked(Call call) {
    using Tiles = ChunkedTiles<D, M>;
    LINATTN_SHARED(shared);
    Tiles& tiles = *reinterpret_cast<Tiles*>(shared);
    const Heads<dtype> head(call);

    for (int x = thread_index(); x < D * Tiles::values; x += Tiles::threads) (&tiles.state[0][0])[x] = 0.0f;
    for (Int start = 0; start < call.length; start += Tiles::C) {
        load_chunk(tiles, head, start);
        LINATTN_BLOCK_BARRIER();
        masked_scores(tiles);
        LINATTN_BLOCK_BARRIER();
        write_outputs(tiles, head, start);
        LINATTN_BLOCK_BARRIER();
        add_to_state(tiles);
        LINATTN_BLOCK_BARRIER();
    }
}

}  // namespace linattn::prototypes
