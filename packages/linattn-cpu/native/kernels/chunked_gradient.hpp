// grad k and grad v of wide heads, and of those that several query heads read, chunk by chunk: within a chunk every
// key meets every query by a triangle of scores. The sweeps of `KeyValueGradient` take four products for each number
// of the state, chunks three and their scores, which pays where the state is wide.
#pragma once

#include "chunked_query_gradient.hpp"

LINATTN_BEGIN

// From the end of the sequence to its beginning. The queries of all heads that read the item lie one after the other,
// kChunk of each.
template <class T>
class ChunkedKeyValueGradient {
public:
    ChunkedKeyValueGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          rows_(kChunk * groups_of(call)),
          query_(arena.take<T>(rows_ * width_)),
          query_columns_(arena.take<T>(rows_ * width_)),
          key_(arena.take<T>(kChunk * width_)),
          value_columns_(arena.take<T>(kChunk * value_width_)),
          gradient_(arena.take<T>(rows_ * value_width_)),
          h_(arena.take<T>(rows_)),
          scores_(arena.take<T>(rows_ * kChunk)),
          columns_(arena.take<T>(kChunk * width_)),
          inside_(arena.take<T>(kChunk * width_)),
          grad_(arena.take<T>(kChunk * (width_ > value_width_ ? width_ : value_width_))) {}

    void run(const Item& item, Range range) {
        const OutRows grad_key = out_rows(call_.grad_key, key_row(call_, item), call_.dim, call_.query_dtype);
        const OutRows grad_value =
            out_rows(call_.grad_value, key_row(call_, item), call_.value_dim, call_.value_dtype);
        const std::int64_t chunks = (range.high - range.low + kChunk - 1) / kChunk;
        for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
            const std::int64_t first = range.low + chunk * kChunk;
            const int count = rows_at(first, range.high, kChunk), exist = rows_at(first, item.keys, kChunk);
            read(item, first, count);
            differentiate_values();
            store_value_gradients<T>(grad_value, first, count, exist, grad_);
            differentiate_keys();
            store_gradients<T>(grad_key, first, count, exist, grad_, key_, call_.map);
            sums.s.add(query_columns_, gradient_, rows_);
            add_weighted_rows<T>(sums, query_, h_, rows_);
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;  // G and r

private:
    void read(const Item& item, std::int64_t first, int count) {
        for (std::int64_t group = 0; group < groups_of(call_); ++group) {
            const Item one = item.read_by(group);
            const GradientInputs<T> inputs(call_, one, Direction::backwards);
            const std::int64_t row = group * kChunk;
            inputs.queries(first, kChunk, query_ + row * width_);
            inputs.gradients(first, kChunk, gradient_ + row * value_width_);
            std::memset(h_ + row, 0, sizeof(T) * kChunk);
            std::memcpy(h_ + row, static_cast<const T*>(call_.scratch) + query_row(call_, one) + first,
                        sizeof(T) * count);
        }
        const Inputs<T> inputs(call_, item, Direction::backwards);
        inputs.keys(first, kChunk, key_);
        inputs.values(first, kChunk, grad_);
        transpose<T>(query_, rows_, width_, width_, query_columns_, rows_);
        transpose<T>(grad_, kChunk, value_width_, value_width_, value_columns_, kChunk);
    }

    // grad v = G^T phi(k).
    void differentiate_values() {
        for (std::int64_t row = 0; row < rows_; row += kChunk) {
            scores<T>(key_, width_, query_columns_ + row, call_.dim, Triangle::upper, scores_ + row, rows_);
        }
        const Triangle triangle = rows_ == kChunk ? Triangle::upper : Triangle::full;
        multiply_both<T>(sums.s.times(key_, call_.dim), {scores_, rows_, 1, gradient_, value_width_, rows_}, triangle,
                         kChunk, value_width_, grad_, value_width_);
    }

    // grad phi(k) = G v + r. The first by columns, because the rows of G lie in memory and not its columns.
    void differentiate_keys() {
        for (std::int64_t row = 0; row < rows_; row += kChunk) {
            T* at = scores_ + row * kChunk;
            scores<T>(gradient_ + row * value_width_, value_width_, value_columns_, call_.value_dim, Triangle::lower,
                      at);
            add_to_lower<T>(at, h_ + row);
        }
        multiply<T>({sums.s.sum, value_width_, 1, value_columns_, kChunk, call_.value_dim}, width_, kChunk, columns_,
                    kChunk);
        transpose<T>(columns_, width_, kChunk, kChunk, grad_, width_);
        multiply<T>({scores_, 1, kChunk, query_, width_, rows_}, kChunk, width_, inside_, width_);
        for (int t = 0; t < kChunk; ++t) {
            for (std::int64_t d = 0; d < width_; d += W<T>) {
                const std::int64_t at = t * width_ + d;
                store<T>(grad_ + at, load<T>(grad_ + at) + load<T>(sums.z + d) + load<T>(inside_ + at));
            }
        }
    }

    const std::int64_t width_, value_width_, rows_;
    T *const query_, *const query_columns_, *const key_, *const value_columns_, *const gradient_, *const h_,
        *const scores_, *const columns_, *const inside_, *const grad_;
};

LINATTN_END
