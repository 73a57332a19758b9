// Causal linear attention, whole sequences (equations 8 to 12 of the paper).
//
//   S_i = sum_{j <= i} phi(k_j) v_j^T    z_i = sum_{j <= i} phi(k_j)
//   n_i = phi(q_i) . z_i + eps           out_i = phi(q_i)^T S_i / n_i
//
// Chunk by chunk: queries read the state before their chunk and meet the chunk's own keys by a
// triangle of scores; then the chunk is added to the state. Nothing of the size of the sequence is
// written but the output and the normalizer.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

// One thread's scratch, and the pass over a part of one item.
template <class T>
class CausalForward {
public:
    CausalForward(Arena& arena, const AttentionForward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          query_(arena.take<T>(kChunk * width_)),
          key_columns_(arena.take<T>(kChunk * width_)),
          value_(arena.take<T>(kChunk * value_width_)),
          scores_(arena.take<T>(kChunk * kChunk)),
          key_sum_(arena.take<T>(width_)),
          tile_(arena.take<T>(kChunk * (width_ > value_width_ ? width_ : value_width_))),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    // The positions of the range, from the sums before it to those after it.
    void run(const Item& item, Range range) {
        const Inputs<T> inputs(call_, item);
        const OutRows out = out_rows(call_.out, call_, item, call_.queries, call_.value_dim, call_.value_dtype);
        T* normalizer = static_cast<T*>(call_.normalizer) + first_row(call_, item, call_.queries);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            inputs.queries(first, kChunk, query_);
            inputs.keys(first, kChunk, tile_);
            inputs.values(first, kChunk, value_);
            read();
            write(out, first, rows_at(first, range.high, kChunk), normalizer + first);
            add();
        }
    }

protected:
    const AttentionForward& call_;

public:
    const Sums<T> sums;

protected:
    // out = phi(q)^T S + the chunk's own part.
    virtual void read() {
        transpose<T>(tile_, kChunk, width_, width_, key_columns_, kChunk);
        sum_of_rows<T>(tile_, kChunk, width_, key_sum_);
        scores<T>(query_, width_, key_columns_, call_.dim, Triangle::lower, scores_);
        multiply_both<T>(sums.s.times(query_, call_.dim), {scores_, kChunk, 1, value_, value_width_, kChunk},
                         Triangle::lower, kChunk, value_width_, tile_, value_width_);
    }

    virtual void add() {
        sums.s.add(key_columns_, value_, kChunk);
        sums.add_to_z(key_sum_);
    }

private:
    // n_i = phi(q_i) . z + (the scores of i with the keys of its chunk) + eps.
    void write(const OutRows& to, std::int64_t first, int rows, T* normalizer) {
        T n[kChunk];
        partial_products<T>(query_, sums.z, width_, partial_);
        for (int i = 0; i < kChunk; ++i) {
            for (int j = 0; j < kChunk; j += W<T>) {
                store<T>(partial_ + i * W<T>, load<T>(partial_ + i * W<T>) + load<T>(scores_ + i * kChunk + j));
            }
        }
        sum_rows<T>(partial_, n);
        prefetch_to_write(to.at(first + kChunk), kChunk * to.width * bytes_of(to.dtype));
        for (int i = 0; i < rows; ++i) {
            normalizer[i] = n[i] + static_cast<T>(call_.eps);
            T* row = tile_ + i * value_width_;
            const T factor = reciprocal_for<T>(normalizer[i], row, value_width_);
            store_row<T>(to.at(first + i), to.dtype, row, to.width, factor);
        }
    }

protected:
    const std::int64_t width_, value_width_;
    T *const query_, *const key_columns_, *const value_, *const scores_, *const key_sum_;
    T* const tile_;  // the chunk's keys, later its outputs: one buffer takes less cache
    T* const partial_;
};

// Sums the keys of all parts but the last of each item, piece by piece.
template <class T>
static inline void sum_key_pieces(const Attention& call, std::int64_t parts, const PieceSums<T>& pieces) {
    const std::int64_t summed = (parts - 1) * kPieces;
    share_parts<KeySums<T>>(call, summed, [&](const Item& item, std::int64_t piece, auto& keys) {
        const Sums<T> sums = pieces.at(item.state, piece);
        sums.clear();
        keys.add(call, item, piece_of(part_of(item.queries, piece / kPieces, parts), piece % kPieces), sums);
    });
}

template <class T, class Pass = CausalForward<T>>
static void causal_forward(const AttentionForward& call) {
    const std::int64_t items = items_of(call), parts = parts_for(items, call.queries, call.threads);
    const PieceSums<T> pieces(call, items, (parts - 1) * kPieces);
    if (parts > 1) sum_key_pieces<T>(call, parts, pieces);
    share_parts<Pass>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.initial, item.state);
        pieces.add(item.state, 0, part * kPieces, pass.sums);
        pass.run(item, part_of(item.queries, part, parts));
        if (part == parts - 1) pass.sums.save_to(call.last, item.state);
    });
}

LINATTN_END
