// grad q and h chunk by chunk, where several query heads read one state or the state decays; see causal_backward.hpp.
// Also writes the part of the decay's gradient that comes from queries reading the state before their chunk;
// `ChunkedKeyValueGradient` adds the rest, which needs G.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

// scores_ij += x_i for j <= i.
template <class T>
LINATTN_LOOP void add_to_lower(T* scores, const T* x) {
    for (int i = 0; i < kChunk; ++i) {
        for (int column = 0; column < kChunk; column += W<T>) {
            const Vec<T> lanes = lane_numbers<T>() + T(column);
            T* at = scores + i * kChunk + column;
            store<T>(at, load<T>(at) + (lanes <= T(i) ? broadcast(x[i]) : Vec<T>{}));
        }
    }
}

template <class T>
class ChunkedQueryGradient {
public:
    ChunkedQueryGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          transposed_(arena, call.value_dim, call.dim),
          decay_(arena, call),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          query_(arena.take<T>(kChunk * width_)),
          key_(arena.take<T>(kChunk * width_)),
          value_(arena.take<T>(kChunk * value_width_)),
          value_columns_(arena.take<T>(kChunk * value_width_)),
          gradient_(arena.take<T>(kChunk * value_width_)),
          out_(arena.take<T>(kChunk * value_width_)),
          scores_(arena.take<T>(kChunk * kChunk)),
          grad_(arena.take<T>(kChunk * width_)),
          inside_(arena.take<T>(kChunk * width_)),
          reads_(arena.take<T>(kChunk)),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    void run(const Item& item, Range range) {
        const Item part = item.up_to(range.high);
        const Inputs<T> inputs(call_, part);
        transposed_.become_transpose_of(sums.s);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            inputs.keys(first, kChunk, key_);
            inputs.values(first, kChunk, value_);
            decay_.load_from(inputs, first);
            if (decay_) keep(item, first);
            transpose<T>(value_, kChunk, value_width_, value_width_, value_columns_, kChunk);
            const int count = rows_at(first, range.high, kChunk);
            std::memset(reads_, 0, sizeof(T) * kChunk);
            for (std::int64_t group = 0; group < groups_of(call_); ++group) {
                differentiate(part.read_by(group), first, count);
            }
            if (decay_) {
                T* reads = static_cast<T*>(call_.grad_log_decay) + key_row(call_, item) + first;
                std::memcpy(reads, reads_, sizeof(T) * count);
                scale_rows<T>(decay_.to_end(), kChunk, width_, key_);
            }
            transposed_.add(value_columns_, key_, kChunk, decay_.across());
            add_rows<T>(sums, key_, kChunk, decay_.across());
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;
    const Checkpoints<T>* checkpoints = nullptr;

private:
    void keep(const Item& item, std::int64_t first) const {
        T* to = checkpoints->at(call_, item, first);
        transpose<T>(transposed_.sum, transposed_.rows, transposed_.width, transposed_.width, to, value_width_);
        std::memcpy(to + width_ * value_width_, sums.z, sizeof(T) * width_);
    }

    // grad = S g + h z of one query head.
    void differentiate(const Item& item, std::int64_t first, int count) {
        const GradientInputs<T> inputs(call_, item);
        const std::int64_t row = query_row(call_, item);
        T h[kChunk];
        inputs.queries(first, kChunk, query_);
        inputs.gradients(first, kChunk, gradient_);
        inputs.normalizer_gradients(first, kChunk, gradient_, out_, partial_, h);
        std::memcpy(static_cast<T*>(call_.scratch) + row + first, h, sizeof(T) * count);
        scores<T>(gradient_, value_width_, value_columns_, call_.value_dim, Triangle::lower, scores_);
        add_to_lower<T>(scores_, h);
        decay_.within(scores_);
        multiply<T>(transposed_.times(gradient_, call_.value_dim), kChunk, width_, grad_, width_);
        add_outer<T>(h, sums.z, kChunk, width_, grad_);
        if (decay_) {
            scale_rows<T>(decay_.from_start(), kChunk, width_, grad_);
            add_row_products<T>(query_, grad_, width_, reads_);
        }
        multiply<T>({scores_, kChunk, 1, key_, width_, kChunk}, kChunk, width_, inside_, width_);
        add_into<T>(inside_, kChunk * width_, grad_);
        store_gradients<T>(out_rows(call_.grad_query, row, call_.dim, call_.query_dtype), first, count, grad_, query_,
                           call_.map);
    }

    const Matrix<T> transposed_;  // S^T
    ChunkDecay<T> decay_;
    const std::int64_t width_, value_width_;
    T *const query_, *const key_, *const value_, *const value_columns_,
                                                     *const gradient_, *const out_, *const scores_,
                                                                                        *const grad_,
                                                                                            *const inside_,
                                                                                                *const reads_,
                                                                                                    *const partial_;
};

LINATTN_END
