// Causal linear attention of whole sequences (equations 8 to 12 of the paper).
//
//   S_i = sum_{j <= i} phi(k_j) v_j^T    z_i = sum_{j <= i} phi(k_j)
//   n_i = phi(q_i) . z_i + eps           out_i = phi(q_i)^T S_i / n_i
//
// The positions are computed in order, a few in one sweep over the state, which may decay before every position. Only
// output and normalizer have the size of the sequence.
#pragma once

#include "chunked_forward.hpp"
#include "sweep.hpp"

LINATTN_BEGIN

// For C vectors of columns of z: partial_t (+)= phi(q_t) z, for z before the sweep of position t; adds the keys to z.
template <class T, int C, bool Decays>
LINATTN_LOOP void add_key_columns(const T* query, const T* key, std::int64_t width, int size, const RunDecay<T>& decay,
                                  T* z, T* compensation, bool add, T* partial) {
    Vec<T> before[C], inside[C] = {};
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) before[c] = load<T>(z + c * W<T>);
    for (int first = 0; first < size; first += kSweep) {
        Vec<T> sum[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[c] = z_before_sweep<T, Decays>(before[c], decay, first, inside[c]);
        for (int t = 0; t < kSweep; ++t, query += width, key += width, partial += W<T>) {
            Vec<T> products = add ? load<T>(partial) : Vec<T>{};
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                products += load<T>(query + c * W<T>) * sum[c];
                const Vec<T> x = load<T>(key + c * W<T>);
                inside[c] += Decays ? x * decay.to_end(first)[t] : x;
            }
            store<T>(partial, products);
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
        kahan_add<T, Decays>(z + c * W<T>, compensation + c * W<T>, inside[c], decay.across_run());
    }
}

// One thread's scratch, and the pass over a part of one item.
template <class T>
class CausalForward {
public:
    CausalForward(Arena& arena, const AttentionForward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          state_(arena, call.dim, call.value_dim),
          query_(arena.take<T>(kRunRows * sums.s.rows)),
          key_(arena.take<T>(kRunRows * sums.s.rows)),
          value_(arena.take<T>(kRunRows * sums.s.width)),
          out_(arena.take<T>(kRunRows * sums.s.width)),
          partial_(arena.take<T>(kRunRows * W<T>)),
          weights_(arena),
          decay_(arena, call) {}

    // The positions of the range, from the sums before it to those after it.
    void run(const Item& item, Range range) {
        const Item part = item.up_to(range.high);
        const Inputs<T> inputs(call_, part);
        const OutRows out = out_rows(call_.out, query_row(call_, item), call_.value_dim, call_.value_dtype);
        T* normalizer = static_cast<T*>(call_.normalizer) + query_row(call_, item);
        state_.load_from(sums.s);
        for (std::int64_t first = range.low; first < range.high; first += kRun) {
            const int count = rows_at(first, range.high, kRun), size = sweeps_for(count);
            inputs.queries(first, size, query_);
            inputs.keys(first, size, key_);
            inputs.values(first, size, value_);
            decay_.load_forwards(inputs, first, size);
            const SweepRows<T> rows{query_, key_, sums.s.rows, value_, out_, sums.s.width};
            weights_.load_from(rows, sums.s.rows, size);
            weights_.decay_by(decay_, size);
            state_.run(rows, weights_, decay_, size);
            add_keys(size);
            write(out, first, count, normalizer);
        }
        state_.save_to(sums.s);
    }

private:
    const AttentionForward& call_;

public:
    const Sums<T> sums;

private:
    // partial = the products of phi(q_i) and z before the sweep of position i, before their lanes are summed.
    void add_keys(int size) {
        if (sums.s.rows == 0) std::memset(partial_, 0, sizeof(T) * W<T> * kRunRows);  // a head dim of 0
        by_vectors<T, 4>(sums.s.rows, [&](auto vectors, std::int64_t d) {
            constexpr int C = decltype(vectors)::value;
            const auto add = decay_ ? add_key_columns<T, C, true> : add_key_columns<T, C, false>;
            add(query_ + d, key_ + d, sums.s.rows, size, decay_, sums.z + d, sums.z_compensation + d, d > 0, partial_);
        });
    }

    // Divides by n_i = phi(q_i) . z_i + eps.
    void write(const OutRows& to, std::int64_t first, int count, T* normalizer) {
        T n[kRunRows];
        for (int group = 0; group < count; group += kChunk) sum_rows<T>(partial_ + group * W<T>, n + group);
        for (int t = 0; t < count; ++t) {
            if (decay_) n[t] *= decay_.from_start()[t];
            for (int j = 0; j < kSweep; ++j) n[t] += weights_.at(t)[j];
        }
        prefetch_to_write(to.at(first + kRun), kRun * to.width * bytes_of(to.dtype));
        write_outputs<T>(call_, to, first, count, n, out_, normalizer);
    }

    const Panels<T> state_;
    T *const query_, *const key_, *const value_, *const out_, *const partial_;
    const SweepWeights<T> weights_;
    RunDecay<T> decay_;
};

// For each item, sums the keys of all parts except the last, piece by piece.
template <class T>
static inline void sum_key_pieces(const Attention& call, std::int64_t parts, const PieceSums<T>& pieces) {
    const std::int64_t summed = (parts - 1) * kPieces;
    share_parts<KeySums<T>>(call, summed, [&](const Item& item, std::int64_t piece, auto& keys) {
        const Sums<T> sums = pieces.at(item.state, piece);
        const Range part = part_of(item.queries, piece / kPieces, parts);
        sums.clear();
        pieces.set_decay(item.state, piece, keys.add(call, item, piece_of(part, piece % kPieces), sums));
    });
}

template <class T, class Pass>
static void causal_forward_by(const AttentionForward& call) {
    const std::int64_t parts = parts_for(call, call.queries, groups_of(call));
    const PieceSums<T> pieces(call, items_of(call), (parts - 1) * kPieces);
    if (parts > 1) sum_key_pieces<T>(call, parts, pieces);
    share_parts<Pass>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.initial, item.state);
        pieces.add(item.state, 0, part * kPieces, pass.sums);
        pass.run(item, part_of(item.queries, part, parts));
        if (part == parts - 1) pass.sums.save_to(call.last, item.state);
    });
}

template <class T>
static void causal_forward(const AttentionForward& call) {
    if (groups_of(call) > 1) return causal_forward_by<T, ChunkedForward<T>>(call);
    causal_forward_by<T, CausalForward<T>>(call);
}

LINATTN_END
