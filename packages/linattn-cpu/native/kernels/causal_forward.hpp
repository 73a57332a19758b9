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
LINATTN_LOOP void add_key_columns(const T* query, const T* key, std::int64_t width, const Section& section,
                                  const RunDecay<T>& decay, T* z, T* rest, bool add, T* partial) {
    Vec<T> before[C], inside[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) before[c] = load<T>(z + c * W<T>), inside[c] = load<T>(rest + c * W<T>);
    for (int first = section.first; first < section.first + section.size; first += kSweep) {
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
        store_z<T, Decays>(before[c], inside[c], decay.across_run(), section.last, z + c * W<T>, rest + c * W<T>);
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
          section_(section_for(state_.bytes(), 4 * sizeof(T) * (sums.s.rows + sums.s.width))),
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
        const Inputs<T> inputs(call_, part, Direction::swept);
        const OutRows out = out_rows(call_.out, query_row(call_, item), call_.value_dim, call_.value_dtype);
        T* normalizer = static_cast<T*>(call_.normalizer) + query_row(call_, item);
        state_.load_from(sums.s);
        for (std::int64_t first = range.low; first < range.high; first += kRun) {
            const int count = rows_at(first, range.high, kRun);
            decay_.load_forwards(inputs, first, sweeps_for(count));
            each_section(count, section_, [&](const Section& section) {
                Ahead ahead;
                const std::int64_t next = first + section.first + section.size;
                inputs.prefetch(next, section_, ahead);
                ahead.add(out, next, rows_at(next, range.high, section_));
                const std::int64_t now = first + section.first;
                compute(inputs, {out, now, rows_at(now, range.high, section.size), normalizer}, section, ahead);
            });
        }
        state_.save_to(sums.s);
    }

private:
    const AttentionForward& call_;

public:
    const Sums<T> sums;

private:
    // The results of a section: `count` of its positions exist, from position `first` on.
    struct Outputs {
        const OutRows& rows;
        std::int64_t first;
        int count;
        T* normalizer;
    };

    void compute(const Inputs<T>& inputs, const Outputs& to, const Section& section, Ahead& ahead) {
        inputs.queries(to.first, section.size, query_);
        inputs.keys(to.first, section.size, key_);
        const ContiguousRows<T> values = inputs.values_in_place(to.first, section.size, value_);
        SweepRows<T> rows{query_, key_, sums.s.rows, values.data, values.step, out_, sums.s.width};
        weights_.load_from(rows, sums.s.rows, section.size);
        weights_.decay_by(decay_, section);
        add_keys(section);
        T n[kRunRows], factors[kRunRows];
        sum_normalizers(section, to.count, n);
        write_normalizers<T>(call_, to.first, to.count, n, to.normalizer);
        const bool in_place = can_be_in_place(to, section) && (!call_.normalize || invert(n, to.count, factors));
        if (in_place) {
            rows.out = static_cast<T*>(to.rows.at(to.first)), rows.out_step = to.rows.width;
            rows.factors = call_.normalize ? factors : nullptr;
        }
        ahead.spread_over(state_.steps(section.size));
        state_.run(rows, weights_, decay_, section, ahead);
        if (!in_place) write_outputs<T>(call_, to.rows, to.first, to.count, n, out_);
    }

    // Whether sweeps may write the outputs themselves: they write whole sweeps, without conversion.
    static bool can_be_in_place(const Outputs& to, const Section& section) {
        return to.count == section.size && takes_results<T>(to.rows);
    }

    // partial = the products of phi(q_i) and z before the sweep of position i, before their lanes are summed.
    void add_keys(const Section& section) {
        if (sums.s.rows == 0) std::memset(partial_, 0, sizeof(T) * W<T> * kRunRows);  // a head dim of 0
        by_vectors<T, 4>(sums.s.rows, [&](auto vectors, std::int64_t d) {
            constexpr int C = decltype(vectors)::value;
            const auto add = decay_ ? add_key_columns<T, C, true> : add_key_columns<T, C, false>;
            add(query_ + d, key_ + d, sums.s.rows, section, decay_, sums.z + d, sums.z_compensation + d, d > 0,
                partial_);
        });
    }

    // n_i = phi(q_i) . z_i. What a position sees of its own sweep is the sum of the weights that the numerator uses, too.
    // So both have the same rounding errors, which halves the error at the first positions of a sequence.
    void sum_normalizers(const Section& section, int count, T* n) const {
        for (int chunk = 0; chunk < count; chunk += kChunk) sum_rows<T>(partial_ + chunk * W<T>, n + chunk);
        for (int t = 0; t < count; ++t) {
            if (decay_) n[t] *= decay_.from_start()[section.first + t];
            for (int j = 0; j < kSweep; ++j) n[t] += weights_.at(t)[j];
        }
    }

    const Panels<T> state_;
    const int section_;
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
