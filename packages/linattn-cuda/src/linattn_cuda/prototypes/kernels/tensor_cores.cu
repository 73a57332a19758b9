// Rung 3, `tensor_cores`: the chunk's four products on tensor cores, in bfloat16 with float32 sums.
//
// The idea. A tensor core multiplies 16 x 16 by 16 x 8 numbers in one instruction of a warp, some fifteen times as many
// a cycle as the plain units. What it asks for is the shape: operands as fragments, a few numbers in each lane's
// registers, brought from shared memory by ldmatrix as they lie or transposed (fragments.cuh). Everything else is the
// chunked rung.
//
// How to think of it. Of a chunk of 64 rows each of four warps owns 16, so that the scores of its rows are its own:
// sums of one product become the left operand of the next without leaving the registers. S and z stay in registers too,
// as float32 sums that are added to from the first chunk to the last, each warp owning some rows of S; a copy rounded
// to bfloat16 lies in shared memory for the other warps to read. The column of ones has become a tile of 8 columns, the
// narrowest there is.
//
// What is rounded. phi(q), phi(k), v, the scores and S as it is read, each once, to bfloat16; float32 and float16
// tensors as well, on their way into the tile. Sums, S and z itself and the division are float32. Right for bfloat16
// tensors, the accuracy of bfloat16 for others.
//
// What binds. The trip to memory at the head of each chunk: between the two barriers that enclose the load, the tensor
// cores have nothing to do.
#pragma once

#include "ladder.cuh"
#include "linattn/device/fragments.cuh"

namespace linattn::prototypes {

constexpr int chunk = 64, chunk_warps = chunk / 16, chunk_threads = 32 * chunk_warps;

// One chunk in shared memory, and the copy of S and z. Pitches are odd multiples of 16 bytes, so that the eight rows
// that ldmatrix reads at once lie in different banks.
template <int D, int M>
struct ChunkTiles {
    static constexpr int bytes = 2 * (2 * chunk * (D + 8) + (chunk + D) * (M + 8));

    Tile<1, D + 8> queries, keys;  // phi(q), phi(k): chunk x D
    Tile<1, M + 8> values, state;  // chunk x (M + 8) and D x (M + 8): M columns, one of ones or z, seven of zeros

    LINATTN_DEVICE explicit ChunkTiles(unsigned char* shared)
        : queries{reinterpret_cast<u16*>(shared)},
          keys{queries.data + chunk * (D + 8)},
          values{keys.data + chunk * (D + 8)},
          state{values.data + chunk * (M + 8)} {}
};

// Eight neighbors of a row of phi(q) or phi(k), turned into what the tile holds.
template <Dtype dtype>
LINATTN_DEVICE void apply_map(float (&x)[8], const Head<dtype>& head, FeatureMap map, Int position, int column) {
    LINATTN_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = head.exists(position, column + i) ? feature(map, x[i]) : 0.0f;
}

template <int D, Dtype dtype>
LINATTN_DEVICE void load_features(Tile<1, D + 8> tile, const Head<dtype>& head, FeatureMap map, Int start) {
    for (int eight = thread_index(); eight < chunk * D / 8; eight += chunk_threads) {
        const int row = eight / (D / 8), column = eight % (D / 8) * 8;
        float x[8];
        head.read_eight(x, start + row, column);
        apply_map(x, head, map, start + row, column);
        tile.write_eight(row, column, x);
    }
}

template <int M, Dtype dtype>
LINATTN_DEVICE void load_values(Tile<1, M + 8> tile, const Head<dtype>& head, Int start) {
    for (int eight = thread_index(); eight < chunk * M / 8; eight += chunk_threads) {
        const int row = eight / (M / 8), column = eight % (M / 8) * 8;
        float x[8];
        head.read_eight(x, start + row, column);
        tile.write_eight(row, column, x);
    }
}

// The column of ones beside the values never changes: it is written once, before the first chunk.
template <int M>
LINATTN_DEVICE void write_ones(Tile<1, M + 8> values) {
    const float ones[8] = {1, 0, 0, 0, 0, 0, 0, 0};
    for (int row = thread_index(); row < chunk; row += chunk_threads) values.write_eight(row, M, ones);
}

// sums[n] += a b for 16 rows and all M + 8 columns of b, from its row `row` on.
template <int M>
LINATTN_DEVICE void multiply_columns(float (&sums)[M / 8 + 1][4], const LeftFragment<1>& a, Tile<1, M + 8> b, int row) {
    LINATTN_UNROLL
    for (int n = 0; n < M / 8; n += 2) {
        const RightFragment<1> right = b.right(row, 8 * n);
        multiply(sums[n], a, right, 0);
        multiply(sums[n + 1], a, right, 1);
    }
    multiply(sums[M / 8], a, b.template right<true>(row, M), 0);
}

// S and z beside it, in registers. A warp owns the rows 16 (warp + 4 r).
template <int D, int M>
struct RegisterState {
    static constexpr int rows = (D / 16 + chunk_warps - 1) / chunk_warps;
    float sums[rows][M / 8 + 1][4] = {};

    LINATTN_DEVICE static int first_row(int r) { return 16 * (thread_index() / 32 + r * chunk_warps); }

    // S += phi(K)^T V.
    LINATTN_DEVICE void add(const ChunkTiles<D, M>& tiles) {
        LINATTN_UNROLL
        for (int r = 0; r < rows; ++r) {
            if (first_row(r) >= D) continue;
            LINATTN_UNROLL
            for (int j = 0; j < chunk; j += 16) {
                multiply_columns<M>(sums[r], tiles.keys.left_transposed(j, first_row(r)), tiles.values, j);
            }
        }
    }

    // Calls use(row, column, first, second) for each pair of neighbors that this lane holds.
    template <class Use>
    LINATTN_DEVICE void for_each_pair(const Use& use) {
        const int lane = thread_index() % 32;
        LINATTN_UNROLL
        for (int r = 0; r < rows; ++r) {
            if (first_row(r) >= D) continue;
            LINATTN_UNROLL
            for (int n = 0; n <= M / 8; ++n) {
                const int row = first_row(r) + lane / 4, column = 8 * n + lane % 4 * 2;
                use(row, column, sums[r][n][0], sums[r][n][1]);
                use(row + 8, column, sums[r][n][2], sums[r][n][3]);
            }
        }
    }

    LINATTN_DEVICE void publish(const ChunkTiles<D, M>& tiles) {
        for_each_pair([&](int row, int column, float x, float y) { tiles.state.write_pair(row, column, x, y); });
    }
};

// Leaves of a block of scores on the diagonal what is not later than its row.
LINATTN_DEVICE void mask_diagonal(float (&block)[2][4]) {
    const int lane = thread_index() % 32;
    LINATTN_UNROLL
    for (int n = 0; n < 2; ++n) {
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) {
            if (8 * n + lane % 4 * 2 + i % 2 > lane / 4 + i / 2 * 8) block[n][i] = 0.0f;
        }
    }
}

// The 16 rows of this warp: numerators, and in the first column of the last tile the denominators.
template <int D, int M>
LINATTN_DEVICE void attend(float (&out)[M / 8 + 1][4], const ChunkTiles<D, M>& tiles) {
    const int row = thread_index() / 32 * 16;
    LeftFragment<1> queries[D / 16];
    LINATTN_UNROLL
    for (int d = 0; d < D / 16; ++d) {
        queries[d] = tiles.queries.left(row, 16 * d);
        multiply_columns<M>(out, queries[d], tiles.state, 16 * d);
    }
    for (int j = 0; j <= row; j += 16) {
        float block[2][4] = {};
        LINATTN_UNROLL
        for (int d = 0; d < D / 16; ++d) {
            const RightFragment<1> keys = tiles.keys.right_transposed(j, 16 * d);
            multiply(block[0], queries[d], keys, 0);
            multiply(block[1], queries[d], keys, 1);
        }
        if (j == row) mask_diagonal(block);
        multiply_columns<M>(out, left_of<1>(block), tiles.values, j);
    }
}

// Divides the rows of this warp and writes them.
template <int M, Dtype dtype>
LINATTN_DEVICE void write_rows(const float (&out)[M / 8 + 1][4], const Heads<dtype>& head, Int start) {
    const int lane = thread_index() % 32;
    LINATTN_UNROLL
    for (int half = 0; half < 2; ++half) {
        const Int position = start + thread_index() / 32 * 16 + lane / 4 + half * 8;
        const float normalizer = shuffle(out[M / 8][2 * half], lane & ~3) + head.eps;
        if (lane % 4 == 0 && position < head.query.length) head.normalizer[position] = normalizer;
        LINATTN_UNROLL
        for (int n = 0; n < M / 8; ++n) {
            const float x = out[n][2 * half] / normalizer, y = out[n][2 * half + 1] / normalizer;
            head.out.write_pair(position, 8 * n + lane % 4 * 2, x, y);
        }
    }
}

template <Dtype dtype, int D, int M>
LINATTN_KERNEL(chunk_threads, 1)
tensor_cores(Call call) {
    LINATTN_SHARED(shared);
    const ChunkTiles<D, M> tiles(shared);
    const Heads<dtype> head(call);
    RegisterState<D, M> state;

    write_ones<M>(tiles.values);
    for (Int start = 0; start < call.length; start += chunk) {
        state.publish(tiles);
        load_features<D>(tiles.queries, head.query, call.map, start);
        load_features<D>(tiles.keys, head.key, call.map, start);
        load_values<M>(tiles.values, head.value, start);
        LINATTN_BLOCK_BARRIER();
        float out[M / 8 + 1][4] = {};
        attend(out, tiles);
        write_rows<M>(out, head, start);
        state.add(tiles);
        LINATTN_BLOCK_BARRIER();
    }
}

}  // namespace linattn::prototypes
