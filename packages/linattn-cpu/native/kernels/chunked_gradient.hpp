// grad k and grad v of wide heads, chunk by chunk: within a chunk every key meets every query by a triangle
// of scores. The sweeps of `KeyValueGradient` take four products for each number of the state, chunks
// three and their scores, which pays where the state is wide.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

// From the end of the sequence to its beginning.
template <class T>
class ChunkedKeyValueGradient {
public:
    ChunkedKeyValueGradient(Arena& arena, const AttentionBackward& call)
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

LINATTN_END
