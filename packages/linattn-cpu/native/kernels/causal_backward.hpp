// Gradients of causal linear attention (equations 13 to 15 of the paper, with the normalizer).
//
//   g_i = grad_out_i / n_i                             h_i = -g_i . out_i
//   grad phi(q_i) = S_i g_i + h_i z_i                  forwards, S and z as in the forward pass
//   grad phi(k_j) = G_j v_j + r_j    grad v_j = G_j^T phi(k_j)
//   G_j = sum_{i >= j} phi(q_i) g_i^T    r_j = sum_{i >= j} h_i phi(q_i)        backwards
//
// S and G are computed again, by the same sweeps as in the forward pass with exchanged operands. Between the two
// passes only h is kept, one number per position. Calls with grouped heads or a trained decay are computed in chunks.
#pragma once

#include "causal_forward.hpp"
#include "chunked_gradient.hpp"

LINATTN_BEGIN

// The widest heads for which sweeps compute the gradients of keys and values. Chunks need fewer products, which pays
// for wider heads; with fewer registers, sweeps are further from the peak, so chunks pay earlier.
inline constexpr std::int64_t kWidestSweep = kRegisters == 32 ? 64 : 32;

// Rows of a run, each with a weight and a factor, in the order of a pass: consecutive rows are `step` numbers apart,
// consecutive weights and factors `turn` (1 or -1).
template <class T>
struct WeightedRows {
    const T *rows, *weights, *factors;
    std::int64_t step, turn;
};

// For C vectors of columns of z: to_t += factor_t z, for z before the sweep of position t; adds weight_t row_t to z.
template <class T, int C, bool Decays>
LINATTN_LOOP void add_sum_columns(WeightedRows<T> x, const Section& section, const RunDecay<T>& decay, T* z, T* rest,
                                  T* to) {
    Vec<T> before[C], inside[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) before[c] = load<T>(z + c * W<T>), inside[c] = load<T>(rest + c * W<T>);
    for (int first = section.first; first < section.first + section.size; first += kSweep) {
        Vec<T> sum[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[c] = z_before_sweep<T, Decays>(before[c], decay, first, inside[c]);
        for (int t = 0; t < kSweep; ++t, x.rows += x.step, x.weights += x.turn, x.factors += x.turn, to += x.step) {
            const T factor = Decays ? *x.factors * decay.from_start()[first + t] : *x.factors;
            const T weight = Decays ? *x.weights * decay.to_end(first)[t] : *x.weights;
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                store<T>(to + c * W<T>, load<T>(to + c * W<T>) + factor * sum[c]);
                inside[c] += weight * load<T>(x.rows + c * W<T>);
            }
        }
    }
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
        store_z<T, Decays>(before[c], inside[c], decay.across_run(), section.last, z + c * W<T>, rest + c * W<T>);
    }
}

template <class T>
static inline void add_sums(const WeightedRows<T>& x, const Section& section, const RunDecay<T>& decay,
                            const Sums<T>& sums, T* to) {
    by_vectors<T, 4>(sums.s.rows, [&](auto vectors, std::int64_t d) {
        constexpr int C = decltype(vectors)::value;
        const WeightedRows<T> columns{x.rows + d, x.weights, x.factors, x.step, x.turn};
        const auto add = decay ? add_sum_columns<T, C, true> : add_sum_columns<T, C, false>;
        add(columns, section, decay, sums.z + d, sums.z_compensation + d, to + d);
    });
}

// The first pass: grad q, and h.
template <class T>
class QueryGradient {
public:
    QueryGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          transposed_(arena, call.value_dim, call.dim),
          state_(arena, call.value_dim, call.dim),
          section_(section_for(state_.bytes(), 6 * sizeof(T) * (sums.s.rows + sums.s.width))),
          query_(arena.take<T>(kRunRows * sums.s.rows)),
          key_(arena.take<T>(kRunRows * sums.s.rows)),
          value_(arena.take<T>(kRunRows * sums.s.width)),
          gradient_(arena.take<T>(kRunRows * sums.s.width)),
          out_(arena.take<T>(kRunRows * sums.s.width)),
          grad_query_(arena.take<T>(kRunRows * sums.s.rows)),
          partial_(arena.take<T>(kChunk * W<T>)),
          weights_(arena),
          decay_(arena, call) {
        for (T& one : ones_) one = T(1);
    }

    void run(const Item& item, Range range, const Checkpoints<T>&) {
        const Item part = item.up_to(range.high);
        const GradientInputs<T> inputs(call_, part, Direction::swept);
        const OutRows grad_query = out_rows(call_.grad_query, query_row(call_, item), call_.dim, call_.query_dtype);
        T* h = static_cast<T*>(call_.scratch) + query_row(call_, item);
        transposed_.become_transpose_of(sums.s);
        state_.load_from(transposed_);
        for (std::int64_t first = range.low; first < range.high; first += kRun) {
            const int count = rows_at(first, range.high, kRun);
            decay_.load_forwards(inputs, first, sweeps_for(count));
            each_section(count, section_, [&](const Section& section) {
                Ahead ahead;
                const std::int64_t now = first + section.first, next = now + section.size;
                const int written = rows_at(now, range.high, section.size);
                inputs.prefetch(next, section_, true, ahead);
                ahead.add(grad_query, next, rows_at(next, range.high, section_));
                compute(inputs, now, section, ahead);
                std::memcpy(h + now, h_, sizeof(T) * written);
                store_gradients<T>(grad_query, now, written, grad_query_, query_, call_.map);
            });
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;

private:
    // grad = S g + h z.
    void compute(const GradientInputs<T>& inputs, std::int64_t first, const Section& section, Ahead& ahead) {
        const std::int64_t width = sums.s.rows, value_width = sums.s.width;
        inputs.queries(first, section.size, query_);
        inputs.keys(first, section.size, key_);
        const T* values = inputs.values_in_place(first, section.size, value_width, value_);
        inputs.gradients(first, section.size, gradient_);
        inputs.normalizer_gradients(first, section.size, gradient_, out_, partial_, h_);
        const SweepRows<T> rows{gradient_, values, value_width, key_, width, grad_query_, width};
        weights_.load_from(rows, value_width, section.size);
        weights_.add(h_, ones_, 1, section.size);
        weights_.decay_by(decay_, section);
        ahead.spread_over(state_.steps(section.size));
        state_.run(rows, weights_, decay_, section, ahead);
        add_sums<T>({key_, ones_, h_, width, 1}, section, decay_, sums, grad_query_);
    }

    const Matrix<T> transposed_;
    const Panels<T> state_;  // S^T
    const int section_;
    T *const query_, *const key_, *const value_, *const gradient_, *const out_, *const grad_query_, *const partial_;
    const SweepWeights<T> weights_;
    RunDecay<T> decay_;
    T ones_[kRunRows], h_[kRunRows];
};

// The second pass, from the end of the sequence: grad k and grad v.
template <class T>
class KeyValueGradient {
public:
    KeyValueGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          transposed_(arena, call.value_dim, call.dim),
          state_(arena, call.dim, call.value_dim),
          columns_(arena, call.value_dim, call.dim),
          wants_values_(call.grad_value != nullptr || call.grad_initial.z != nullptr),
          wants_keys_(call.grad_key != nullptr || call.grad_initial.z != nullptr),
          query_(arena.take<T>(kRunRows * sums.s.rows)),
          key_(arena.take<T>(kRunRows * sums.s.rows)),
          value_(arena.take<T>(kRunRows * sums.s.width)),
          gradient_(arena.take<T>(kRunRows * sums.s.width)),
          grad_key_(arena.take<T>(kRunRows * sums.s.rows)),
          grad_value_(arena.take<T>(kRunRows * sums.s.width)),
          weights_(arena),
          decay_(arena, call) {
        for (T& one : ones_) one = T(1);
    }

    void run(const Item& item, Range range, const Checkpoints<T>&) {
        const Item part = item.up_to(range.high);
        const GradientInputs<T> inputs(call_, part, Direction::swept);
        const OutRows grad_key = out_rows(call_.grad_key, key_row(call_, item), call_.dim, call_.query_dtype);
        const OutRows grad_value = out_rows(call_.grad_value, key_row(call_, item), call_.value_dim, call_.value_dtype);
        const std::int64_t width = sums.s.rows, value_width = sums.s.width;
        const T* h = static_cast<const T*>(call_.scratch) + query_row(call_, item);
        transposed_.become_transpose_of(sums.s);
        state_.load_from(sums.s);
        columns_.load_from(transposed_);
        const std::int64_t runs = (range.high - range.low + kRun - 1) / kRun;
        for (std::int64_t index = runs - 1; index >= 0; --index) {
            const std::int64_t first = range.low + index * kRun;
            const int count = rows_at(first, range.high, kRun);
            const int size = sweeps_for(count), last = size - 1;
            T normalizer_gradients[kRunRows] = {};
            std::memcpy(normalizer_gradients, h + first, sizeof(T) * count);
            inputs.queries(first, size, query_);
            inputs.keys(first, size, key_);
            const T* values = inputs.values_in_place(first, size, value_width, value_);
            inputs.gradients(first, size, gradient_);
            decay_.load_backwards(inputs, first, size);
            const Section section{0, size, true};
            Ahead ahead;
            if (index > 0) prefetch(inputs, first - kRun, grad_key, grad_value, ahead);
            ahead.spread_over((wants_values_ ? state_.steps(size) : 0) + (wants_keys_ ? columns_.steps(size) : 0));
            // grad v = G^T phi(k).
            if (wants_values_) {
                const bool at_once = takes_results<T>(grad_value) && count == size && inputs.all_exist(first, count);
                T* to = at_once ? static_cast<T*>(grad_value.at(first)) : grad_value_;
                const SweepRows<T> rows =
                    SweepRows<T>{key_, query_, width, gradient_, value_width, to, value_width}.backwards(size);
                weights_.load_from(rows, width, size);
                weights_.decay_by(decay_, section);
                state_.run(rows, weights_, decay_, section, ahead);
                if (!at_once) {
                    inputs.erase_absent(first, count, value_width, grad_value_);
                    write_rows<T>(grad_value, first, grad_value_, count);
                }
            }
            // grad phi(k) = G v + r.
            if (wants_keys_) {
                const SweepRows<T> rows =
                    SweepRows<T>{values, gradient_, value_width, query_, width, grad_key_, width}.backwards(size);
                weights_.load_from(rows, value_width, size);
                weights_.add(ones_ + last, normalizer_gradients + last, -1, size);
                weights_.decay_by(decay_, section);
                columns_.run(rows, weights_, decay_, section, ahead);
                add_sums<T>({query_ + last * width, normalizer_gradients + last, ones_ + last, -width, -1}, section,
                            decay_, sums, grad_key_ + last * width);
                inputs.erase_absent(first, count, width, grad_key_);
                store_gradients<T>(grad_key, first, count, grad_key_, key_, call_.map);
            }
        }
        state_.save_to(sums.s);
        if (decay_) decay_by_first(inputs, range);
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;  // G and r

private:
    // Adds the rows of the run that starts at `first` to those that are prefetched.
    static void prefetch(const GradientInputs<T>& inputs, std::int64_t first, const OutRows& grad_key,
                         const OutRows& grad_value, Ahead& ahead) {
        inputs.prefetch(first, kRun, false, ahead);
        ahead.add(grad_key, first, kRun);
        ahead.add(grad_value, first, kRun);
    }

    // From the gradient of the state after the first position of the range to that of the state before it.
    void decay_by_first(const Inputs<T>& inputs, Range range) const {
        if (range.low == range.high) return;
        T log;
        inputs.log_decays(range.low, 1, &log);
        sums.decay_by(Decay<T>::by(log));
    }

    const Matrix<T> transposed_;
    const Panels<T> state_, columns_;       // G and G^T
    const bool wants_values_, wants_keys_;  // also for the initial state: the first updates G, the second r
    T *const query_, *const key_, *const value_, *const gradient_, *const grad_key_, *const grad_value_;
    const SweepWeights<T> weights_;
    RunDecay<T> decay_;
    T ones_[kRunRows];
};

// The first pass if the gradient of the queries is not wanted: only h, which the second pass reads.
template <class T>
class NormalizerGradient {
public:
    NormalizerGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          gradient_(arena.take<T>(kChunk * padded<T>(call.value_dim))),
          out_(arena.take<T>(kChunk * padded<T>(call.value_dim))),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    // One query head.
    void run(const Item& item, Range range) {
        const GradientInputs<T> inputs(call_, item);
        T* to = static_cast<T*>(call_.scratch) + query_row(call_, item);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            T h[kChunk];
            inputs.gradients(first, kChunk, gradient_);
            inputs.normalizer_gradients(first, kChunk, gradient_, out_, partial_, h);
            std::memcpy(to + first, h, sizeof(T) * rows_at(first, range.high, kChunk));
        }
    }

private:
    const AttentionBackward& call_;
    T *const gradient_, *const out_, *const partial_;
};

template <class T>
static void differentiate_normalizers(const AttentionBackward& call, std::int64_t parts) {
    share_parts<NormalizerGradient<T>>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        for (std::int64_t group = 0; group < groups_of(call); ++group) {
            pass.run(item.read_by(group), part_of(item.queries, part, parts));
        }
    });
}

template <class T, class Pass>
static void differentiate_queries(const AttentionBackward& call, std::int64_t parts,
                                  const CheckpointsOfItems<T>& checkpoints) {
    const PieceSums<T> pieces(call, items_of(call), (parts - 1) * kPieces);
    if (parts > 1) sum_key_pieces<T>(call, parts, pieces);
    share_parts<Pass>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.state, item.state);
        pieces.add(item.state, 0, part * kPieces, pass.sums);
        pass.run(item, part_of(item.queries, part, parts), checkpoints.of(item));
    });
}

// For each item, sums queries and gradients of all parts except the first, piece by piece.
template <class T>
static inline void sum_query_pieces(const AttentionBackward& call, std::int64_t parts, const PieceSums<T>& pieces) {
    const std::int64_t summed = (parts - 1) * kPieces;
    share_parts<QuerySums<T>>(call, summed, [&](const Item& item, std::int64_t piece, auto& queries) {
        const Sums<T> sums = pieces.at(item.state, piece);
        sums.clear();
        const Range part = part_of(item.queries, 1 + piece / kPieces, parts);
        pieces.set_decay(item.state, piece, queries.add(call, item, piece_of(part, piece % kPieces), sums));
    });
}

template <class T, class Pass>
static void differentiate_keys_and_values(const AttentionBackward& call, std::int64_t parts,
                                          const CheckpointsOfItems<T>& checkpoints) {
    const PieceSums<T> pieces(call, items_of(call), (parts - 1) * kPieces);
    if (parts > 1) sum_query_pieces<T>(call, parts, pieces);
    share_parts<Pass>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.grad_last, item.state);
        pieces.add(item.state, part * kPieces, (parts - 1) * kPieces, pass.sums, Direction::backwards);
        pass.run(item, part_of(item.queries, part, parts), checkpoints.of(item));
        if (part == 0) pass.sums.save_to(call.grad_initial, item.state);
    });
}

// A backward call that computes both passes of one item before the next item.
struct BackwardByItems : AttentionBackward {
    std::int64_t longest;  // the length of the longest sequence
};

// Both passes over one item, with the gradient of the decay. The first pass keeps states for the second. They take the
// memory of one item per thread, not of all items, and stay in a cache if the sequence is short.
template <class T>
class DecayGradient {
public:
    DecayGradient(Arena& arena, const BackwardByItems& call)
        : call_(call),
          queries_(arena, call),
          keys_and_values_(arena, call),
          checkpoints_(call, arena.take<T>(Checkpoints<T>::size_for(call, call.longest))) {}

    void run(const Item& item) {
        const Range all{0, item.queries};
        queries_.sums.load_from(call_.state, item.state);
        queries_.run(item, all, checkpoints_);
        keys_and_values_.sums.load_from(call_.grad_last, item.state);
        keys_and_values_.run(item, all, checkpoints_);
        keys_and_values_.sums.save_to(call_.grad_initial, item.state);
    }

private:
    const AttentionBackward& call_;
    ChunkedQueryGradient<T> queries_;
    ChunkedKeyValueGradient<T> keys_and_values_;
    const Checkpoints<T> checkpoints_;
};

template <class T>
static void causal_backward(const AttentionBackward& call) {
    const std::int64_t parts = parts_for(call, call.queries, groups_of(call));
    const bool decay = call.grad_log_decay != nullptr, chunks = groups_of(call) > 1 || decay;
    if (decay && parts == 1) {
        const BackwardByItems items{call, longest_sequence(call)};
        share_parts<DecayGradient<T>>(items, 1, [](const Item& item, std::int64_t, auto& pass) { pass.run(item); });
        return;
    }
    const CheckpointsOfItems<T> checkpoints(call);
    const bool narrow = call.dim <= kWidestSweep && call.value_dim <= kWidestSweep;
    if (call.grad_query == nullptr && !decay) {
        differentiate_normalizers<T>(call, parts);
    } else if (chunks) {
        differentiate_queries<T, ChunkedQueryGradient<T>>(call, parts, checkpoints);
    } else {
        differentiate_queries<T, QueryGradient<T>>(call, parts, checkpoints);
    }
    const bool keys = call.grad_key != nullptr || call.grad_value != nullptr || call.grad_initial.z != nullptr;
    if (!keys && !decay) return;
    if (narrow && !chunks) return differentiate_keys_and_values<T, KeyValueGradient<T>>(call, parts, checkpoints);
    differentiate_keys_and_values<T, ChunkedKeyValueGradient<T>>(call, parts, checkpoints);
}

LINATTN_END
