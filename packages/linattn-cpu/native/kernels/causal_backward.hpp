// Gradients of causal linear attention (equations 13 to 15 of the paper, with the normalizer).
//
//   g_i = grad_out_i / n_i                             h_i = -g_i . out_i
//   grad phi(q_i) = S_i g_i + h_i z_i                  forwards, S and z as in the forward pass
//   grad phi(k_j) = G_j v_j + r_j    grad v_j = G_j^T phi(k_j)
//   G_j = sum_{i >= j} phi(q_i) g_i^T    r_j = sum_{i >= j} h_i phi(q_i)        backwards
//
// S and G are computed again, chunk by chunk. Between the two passes only h is kept, one number a
// position.
#pragma once

#include "causal_forward.hpp"

LINATTN_BEGIN

// The first pass: grad q, and h.
template <class T>
class QueryGradient {
public:
    QueryGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          state_(arena, call.value_dim, call.dim),
          query_(arena.take<T>(kChunk * width_)),
          key_(arena.take<T>(kChunk * width_)),
          value_(arena.take<T>(kChunk * value_width_)),
          value_columns_(arena.take<T>(kChunk * value_width_)),
          gradient_(arena.take<T>(kChunk * value_width_)),
          scores_(arena.take<T>(kChunk * kChunk)),
          grad_query_(arena.take<T>(kChunk * width_)),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    void run(const Item& item, Range range) {
        const GradientInputs<T> inputs(call_, item);
        const OutRows grad_query = out_rows(call_.grad_query, call_, item, call_.queries, call_.dim, call_.query_dtype);
        T* h = static_cast<T*>(call_.scratch) + first_row(call_, item, call_.queries);
        state_.become_transpose_of(sums.s);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            const int count = rows_at(first, range.high, kChunk);
            T normalizer_gradients[kChunk];
            inputs.queries(first, kChunk, query_);
            inputs.keys(first, kChunk, key_);
            inputs.values(first, kChunk, value_);
            inputs.gradients(first, kChunk, gradient_);
            transpose<T>(value_, kChunk, value_width_, value_width_, value_columns_, kChunk);
            // From here on only the columns of the values are read.
            inputs.normalizer_gradients(first, kChunk, gradient_, value_, partial_, normalizer_gradients);
            std::memcpy(h + first, normalizer_gradients, sizeof(T) * count);
            read();
            add_normalizer(normalizer_gradients);
            store_gradients<T>(grad_query, first, count, count, grad_query_, query_, call_.map);
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;

private:
    // grad = S g, by the transpose of S, which the chunk is added to.
    void read() {
        scores<T>(gradient_, value_width_, value_columns_, call_.value_dim, Triangle::lower, scores_);
        multiply_both<T>(state_.times(gradient_, call_.value_dim), {scores_, kChunk, 1, key_, width_, kChunk},
                         Triangle::lower, kChunk, width_, grad_query_, width_);
        state_.add(value_columns_, key_, kChunk);
    }

    // grad += h z, with z up to each position.
    void add_normalizer(const T* h) {
        for (std::int64_t d = 0; d < width_; d += W<T>) {
            const Vec<T> before = load<T>(sums.z + d);
            Vec<T> inside{};
            for (int t = 0; t < kChunk; ++t) {
                inside += load<T>(key_ + t * width_ + d);
                T* grad = grad_query_ + t * width_ + d;
                store<T>(grad, load<T>(grad) + h[t] * (before + inside));
            }
            kahan_add<T>(sums.z + d, sums.z_compensation + d, inside);
        }
    }

    const std::int64_t width_, value_width_;
    const Matrix<T> state_;  // S^T
    T *const query_, *const key_, *const value_, *const value_columns_, *const gradient_, *const scores_,
                                                                                              *const grad_query_,
                                                                                                  *const partial_;
};

// The second pass, from the end of the sequence: grad k and grad v.
template <class T>
class KeyValueGradient {
public:
    KeyValueGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          query_(arena.take<T>(kChunk * width_)),
          query_columns_(arena.take<T>(kChunk * width_)),
          key_(arena.take<T>(kChunk * width_)),
          value_columns_(arena.take<T>(kChunk * value_width_)),
          gradient_(arena.take<T>(kChunk * value_width_)),
          scores_(arena.take<T>(kChunk * kChunk)),
          grad_columns_(arena.take<T>(kChunk * width_)),
          grad_(arena.take<T>(kChunk * (width_ > value_width_ ? width_ : value_width_))) {}

    void run(const Item& item, Range range) {
        const GradientInputs<T> inputs(call_, item, Direction::backwards);
        const OutRows grad_key = out_rows(call_.grad_key, call_, item, call_.keys, call_.dim, call_.query_dtype);
        const OutRows grad_value =
            out_rows(call_.grad_value, call_, item, call_.keys, call_.value_dim, call_.value_dtype);
        const T* h = static_cast<const T*>(call_.scratch) + first_row(call_, item, call_.queries);
        const std::int64_t chunks = (range.high - range.low + kChunk - 1) / kChunk;
        for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
            const std::int64_t first = range.low + chunk * kChunk;
            const int count = rows_at(first, range.high, kChunk), exist = rows_at(first, item.keys, kChunk);
            inputs.queries(first, kChunk, query_);
            inputs.keys(first, kChunk, key_);
            inputs.values(first, kChunk, grad_);
            inputs.gradients(first, kChunk, gradient_);
            transpose<T>(query_, kChunk, width_, width_, query_columns_, kChunk);
            transpose<T>(grad_, kChunk, value_width_, value_width_, value_columns_, kChunk);
            differentiate_values();
            store_value_gradients<T>(grad_value, first, count, exist, grad_);
            differentiate_keys();
            add_normalizer(h + first, count);
            store_gradients<T>(grad_key, first, count, exist, grad_, key_, call_.map);
            sums.s.add(query_columns_, gradient_, kChunk);
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;  // G and r

private:
    // grad v = G^T phi(k).
    void differentiate_values() {
        scores<T>(key_, width_, query_columns_, call_.dim, Triangle::upper, scores_);
        multiply_both<T>(sums.s.times(key_, call_.dim), {scores_, kChunk, 1, gradient_, value_width_, kChunk},
                         Triangle::upper, kChunk, value_width_, grad_, value_width_);
    }

    // grad phi(k) = G v, position by column, because the rows of G lie in memory and not its columns.
    void differentiate_keys() {
        scores<T>(gradient_, value_width_, value_columns_, call_.value_dim, Triangle::lower, scores_);
        multiply_both<T>({sums.s.sum, value_width_, 1, value_columns_, kChunk, call_.value_dim},
                         {query_columns_, kChunk, 1, scores_, kChunk, kChunk}, Triangle::full, width_, kChunk,
                         grad_columns_, kChunk);
        transpose<T>(grad_columns_, width_, kChunk, kChunk, grad_, width_);
    }

    // grad += r, the sum from each position to the end.
    void add_normalizer(const T* h, int count) {
        for (std::int64_t d = 0; d < width_; d += W<T>) {
            const Vec<T> after = load<T>(sums.z + d);
            Vec<T> inside{};
            for (int t = count - 1; t >= 0; --t) {
                inside += h[t] * load<T>(query_ + t * width_ + d);
                T* grad = grad_ + t * width_ + d;
                store<T>(grad, load<T>(grad) + (after + inside));
            }
            kahan_add<T>(sums.z + d, sums.z_compensation + d, inside);
        }
    }

    const std::int64_t width_, value_width_;
    T *const query_, *const query_columns_, *const key_, *const value_columns_,
                                                             *const gradient_, *const scores_, *const grad_columns_,
                                                                                                   *const grad_;
};

template <class T>
static void differentiate_queries(const AttentionBackward& call, std::int64_t parts) {
    const PieceSums<T> pieces(call, items_of(call), (parts - 1) * kPieces);
    if (parts > 1) sum_key_pieces<T>(call, parts, pieces);
    share_parts<QueryGradient<T>>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.state, item.state);
        pieces.add(item.state, 0, part * kPieces, pass.sums);
        pass.run(item, part_of(item.queries, part, parts));
    });
}

// Sums queries and gradients of all parts but the first of each item, piece by piece.
template <class T>
static inline void sum_query_pieces(const AttentionBackward& call, std::int64_t parts, const PieceSums<T>& pieces) {
    const std::int64_t summed = (parts - 1) * kPieces;
    share_parts<QuerySums<T>>(call, summed, [&](const Item& item, std::int64_t piece, auto& queries) {
        const Sums<T> sums = pieces.at(item.state, piece);
        sums.clear();
        const Range part = part_of(item.queries, 1 + piece / kPieces, parts);
        queries.add(call, item, piece_of(part, piece % kPieces), sums);
    });
}

template <class T>
static void differentiate_keys_and_values(const AttentionBackward& call, std::int64_t parts) {
    const PieceSums<T> pieces(call, items_of(call), (parts - 1) * kPieces);
    if (parts > 1) sum_query_pieces<T>(call, parts, pieces);
    share_parts<KeyValueGradient<T>>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.grad_last, item.state);
        pieces.add(item.state, part * kPieces, (parts - 1) * kPieces, pass.sums);
        pass.run(item, part_of(item.queries, part, parts));
        if (part == 0) pass.sums.save_to(call.grad_initial, item.state);
    });
}

template <class T>
static void causal_backward(const AttentionBackward& call) {
    const std::int64_t parts = parts_for(items_of(call), call.queries, call.threads);
    differentiate_queries<T>(call, parts);
    differentiate_keys_and_values<T>(call, parts);
}

LINATTN_END
