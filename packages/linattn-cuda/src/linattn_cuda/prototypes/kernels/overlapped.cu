// Rung 4, `overlapped`: the next chunk is on its way while this one is computed.
//
// The idea. cp.async (copy16 in platform.cuh) copies from global to shared memory without passing through registers and
// without waiting: a thread starts its copies, commits them as a group, goes on with the products, and waits for the
// group when it needs it. The trip to memory, which the rung below pays for at every chunk, is hidden behind the
// products.
//
// How to think of it. A copy only copies: it cannot apply phi, nor convert. So a chunk arrives as it lies in memory in
// a place of its own, `raw`, and is turned into the tiles' features once it is there; from then on `raw` is free for
// the next. Two barriers a chunk, as before:
//
//     wait for raw, barrier  |  raw -> tiles, publish S, barrier  |  start copies of the next, four products
//
// Tensors whose rows are not whole 16 bytes at aligned addresses take the slow way, number by number, to the same
// place.
//
// What binds. With enough heads for every multiprocessor, memory, as it should. With few heads, the walk: N / 64 chunks
// one after the other, on as many multiprocessors as there are heads.
#pragma once

#include "tensor_cores.cu"

namespace linattn::prototypes {

// The rows of one chunk as they lie in global memory.
template <Dtype dtype, int width>
struct RawRows {
    static constexpr int number = bytes_of(dtype), bytes = chunk * width * number;
    unsigned char* data;

    // Starts the copies of a chunk.
    LINATTN_DEVICE void fetch(const Head<dtype>& head, Int start) const {
        constexpr int in_piece = 16 / number, pieces = width / in_piece;
        for (int piece = thread_index(); piece < chunk * pieces; piece += chunk_threads) {
            const Int position = start + piece / pieces;
            const int column = piece % pieces * in_piece;
            if (head.wide) {
                const bool exists = head.exists(position, column);
                copy16(data + 16 * piece, exists ? head.at(position, column) : head.data, exists ? 16 : 0);
            } else {
                for (int i = 0; i < in_piece; ++i) {
                    write_number(data, piece * in_piece + i, dtype, head.read(position, column + i));
                }
            }
        }
    }

    LINATTN_DEVICE void read_eight(float (&x)[8], int row, int column) const {
        linattn::read_eight(x, data + (row * width + column) * number, dtype);
    }

    // phi of what has arrived, and the values, into the tiles.
    LINATTN_DEVICE void to_features(Tile<1, width + 8> tile, const Head<dtype>& head, FeatureMap map, Int start) const {
        for (int eight = thread_index(); eight < chunk * width / 8; eight += chunk_threads) {
            const int row = eight / (width / 8), column = eight % (width / 8) * 8;
            float x[8];
            read_eight(x, row, column);
            apply_map(x, head, map, start + row, column);
            tile.write_eight(row, column, x);
        }
    }

    LINATTN_DEVICE void to_values(Tile<1, width + 8> tile) const {
        for (int eight = thread_index(); eight < chunk * width / 8; eight += chunk_threads) {
            const int row = eight / (width / 8), column = eight % (width / 8) * 8;
            float x[8];
            read_eight(x, row, column);
            tile.write_eight(row, column, x);
        }
    }
};

// Raw queries, keys and values behind the tiles.
template <Dtype dtype, int D, int M>
struct RawChunk {
    static constexpr int bytes = 2 * RawRows<dtype, D>::bytes + RawRows<dtype, M>::bytes;
    RawRows<dtype, D> queries, keys;
    RawRows<dtype, M> values;

    LINATTN_DEVICE explicit RawChunk(unsigned char* data)
        : queries{data}, keys{data + RawRows<dtype, D>::bytes}, values{data + 2 * RawRows<dtype, D>::bytes} {}
};

// Walks the positions from `begin` to `end`, with the state as it is before them.
template <Dtype dtype, int D, int M>
LINATTN_DEVICE void walk(const Call& call, unsigned char* shared, Int begin, Int end, RegisterState<D, M>& state) {
    const ChunkTiles<D, M> tiles(shared);
    const RawChunk<dtype, D, M> raw(shared + ChunkTiles<D, M>::bytes);
    const Heads<dtype> head(call);
    const auto fetch = [&](Int start) {
        raw.queries.fetch(head.query, start);
        raw.keys.fetch(head.key, start);
        raw.values.fetch(head.value, start);
        copies_commit();
    };

    write_ones<M>(tiles.values);
    fetch(begin);
    for (Int start = begin; start < end; start += chunk) {
        copies_wait<0>();
        LINATTN_BLOCK_BARRIER();
        state.publish(tiles);
        raw.queries.to_features(tiles.queries, head.query, call.map, start);
        raw.keys.to_features(tiles.keys, head.key, call.map, start);
        raw.values.to_values(tiles.values);
        LINATTN_BLOCK_BARRIER();
        if (start + chunk < end) fetch(start + chunk);
        float out[M / 8 + 1][4] = {};
        attend(out, tiles);
        write_rows<M>(out, head, start);
        state.add(tiles);
    }
}

template <Dtype dtype, int D, int M>
LINATTN_KERNEL(chunk_threads, 1)
overlapped(Call call) {
    LINATTN_SHARED(shared);
    RegisterState<D, M> state;
    walk<dtype>(call, shared, 0, call.length, state);
}

}  // namespace linattn::prototypes
