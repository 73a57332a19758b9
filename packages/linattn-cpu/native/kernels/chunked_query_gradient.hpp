// grad q and h chunk by chunk, for grouped heads and trained decay; see causal_backward.hpp. Also writes the part of the
// decay's gradient that comes from queries reading the state before their chunk; `ChunkedKeyValueGradient` adds the
// rest, which needs G.
#pragma once

#include "chunk_rows.hpp"
#include "rewind.hpp"

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
          chunk_(arena, call),
          value_columns_(arena.take<T>(kChunk * chunk_.value_width)),
          gradient_(arena.take<T>(kChunk * chunk_.value_width)),
          grad_(arena.take<T>(kChunk * chunk_.width)) {}

    void run(const Item& item, Range range, const Checkpoints<T>& checkpoints) {
        const Item part = item.up_to(range.high);
        const Inputs<T> inputs(call_, part);
        const ChunkRows<T>& x = chunk_;
        transposed_.become_transpose_of(sums.s);
        for (std::int64_t first = range.low; first < range.high; first += kChunk) {
            chunk_.load_keys(inputs, first);
            if (checkpoints.kept() && first % kBlock == 0) keep(checkpoints.at(first));
            transpose<T>(x.value, kChunk, x.value_width, x.value_width, value_columns_, kChunk);
            const int count = rows_at(first, range.high, kChunk);
            std::memset(reads_, 0, sizeof reads_);
            for (std::int64_t group = 0; group < groups_of(call_); ++group) {
                differentiate(part.read_by(group), first, count);
            }
            if (call_.grad_log_decay != nullptr) {
                T* reads = static_cast<T*>(call_.grad_log_decay) + key_row(call_, item) + first;
                std::memcpy(reads, reads_, sizeof(T) * count);
            }
            if (x.decay) scale_rows<T>(x.decay.to_end(), kChunk, x.width, x.key);
            transposed_.add(value_columns_, x.key, kChunk, x.decay.across());
            add_rows<T>(sums, x.key, kChunk, x.decay.across());
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;

private:
    // Saves S, followed by z.
    void keep(T* to) const {
        const Matrix<T>& s = transposed_;
        transpose<T>(s.sum, s.rows, s.width, s.width, to, s.rows);
        std::memcpy(to + s.width * s.rows, sums.z, sizeof(T) * s.width);
    }

    // grad = S g + h z of one query head.
    void differentiate(const Item& item, std::int64_t first, int count) {
        const ChunkRows<T>& x = chunk_;
        const GradientInputs<T> inputs(call_, item);
        const std::int64_t row = query_row(call_, item);
        T h[kChunk];
        inputs.queries(first, kChunk, x.query);
        inputs.gradients(first, kChunk, gradient_);
        inputs.normalizer_gradients(first, kChunk, gradient_, x.out, x.partial, h);
        std::memcpy(static_cast<T*>(call_.scratch) + row + first, h, sizeof(T) * count);
        scores<T>(gradient_, x.value_width, value_columns_, call_.value_dim, x.scores);
        add_to_lower<T>(x.scores, h);
        x.decay.within(x.scores);
        multiply<T>(transposed_.times(gradient_, call_.value_dim), kChunk, x.width, grad_, x.width);
        add_outer<T>(h, sums.z, kChunk, x.width, grad_);
        if (x.decay) scale_rows<T>(x.decay.from_start(), kChunk, x.width, grad_);
        if (call_.grad_log_decay != nullptr) add_row_products<T>(x.query, grad_, x.width, reads_);
        add_multiple<T>({x.scores, kChunk, 1, x.key, x.width, kChunk}, Triangle::lower, kChunk, x.width, T(1), grad_,
                        grad_, x.width);
        store_gradients<T>(out_rows(call_.grad_query, row, call_.dim, call_.query_dtype), first, count, grad_, x.query,
                           call_.map);
    }

    const Matrix<T> transposed_;  // S^T
    ChunkRows<T> chunk_;
    T* const value_columns_;
    T* const gradient_;
    T* const grad_;
    T reads_[kChunk];
};

LINATTN_END
