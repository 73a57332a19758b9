// Linear attention of every query to every key (equations 4 to 6 of the paper), and its gradients.
//
//   S = sum_j phi(k_j) v_j^T    z = sum_j phi(k_j)    out_i = phi(q_i)^T S / (phi(q_i) . z + eps)
//
// The forward pass first computes the sums over the keys, starting from an initial state if there is one, and then the
// queries. The backward pass first computes the gradients of the queries and of the sums, G and r, which are also those
// of the initial state, and then those of the keys. Within each half, positions are independent.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

// call.last = call.initial + the sums over the keys; first the sums of parts, so that every thread has work.
template <class T>
static inline void sum_all_keys(const AttentionForward& call) {
    const std::int64_t parts = parts_for(call, call.keys, 1);
    const PieceSums<T> pieces(call, items_of(call), parts);
    share_parts<KeySums<T>>(call, parts, [&](const Item& item, std::int64_t part, auto& keys) {
        const Sums<T> sums = pieces.at(item.state, part);
        sums.load_from(part == 0 ? call.initial : State{}, item.state);
        keys.add(call, item, part_of(item.keys, part, parts), sums);
    });
    for (std::int64_t item = 0; item < items_of(call); ++item) {
        const Sums<T> sums = pieces.at(item, 0);
        pieces.add(item, 1, parts, sums);
        sums.save_to(call.last, item);
    }
}

// Reads the sums for a range of queries.
template <class T>
class NonCausalRead {
public:
    NonCausalRead(Arena& arena, const AttentionForward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          query_(arena.take<T>(kBlock * sums.s.rows)),
          out_(arena.take<T>(kBlock * sums.s.width)),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    // Each query head of the item.
    void run(const Item& item, Range range) {
        for (std::int64_t group = 0; group < groups_of(call_); ++group) read(item.read_by(group), range);
    }

private:
    const AttentionForward& call_;

public:
    const Sums<T> sums;

private:
    void read(const Item& item, Range range) {
        const Inputs<T> inputs(call_, item);
        const OutRows out = out_rows(call_.out, query_row(call_, item), call_.value_dim, call_.value_dtype);
        T* normalizer = static_cast<T*>(call_.normalizer) + query_row(call_, item);
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int count = rows_at(first, range.high, kBlock);
            const int size = static_cast<int>(round_up(count, kChunk));
            inputs.queries(first, size, query_);
            multiply<T>(sums.s.times(query_, call_.dim), size, sums.s.width, out_, sums.s.width);
            T n[kBlock];
            for (int group = 0; group < size; group += kChunk) {
                partial_products<T>(query_ + group * sums.s.rows, sums.z, sums.s.rows, partial_);
                sum_rows<T>(partial_, n + group);
            }
            prefetch_to_write(out.at(first + kBlock), kBlock * out.width * bytes_of(out.dtype));
            write_normalizers<T>(call_, first, count, n, normalizer);
            write_outputs<T>(call_, out, first, count, n, out_);
        }
    }

    T *const query_, *const out_, *const partial_;
};

template <class T>
static void noncausal_forward(const AttentionForward& call) {
    sum_all_keys<T>(call);
    const std::int64_t parts = parts_for(call, call.queries, groups_of(call));
    share_parts<NonCausalRead<T>>(call, parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.last, item.state);
        pass.run(item, part_of(item.queries, part, parts));
    });
}

// grad q of a range of queries, and what they add to G and r.
template <class T>
class NonCausalQueryGradient {
public:
    NonCausalQueryGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          transposed_(arena, call.value_dim, call.dim),
          query_(arena.take<T>(kBlock * sums.s.rows)),
          gradient_(arena.take<T>(kBlock * sums.s.width)),
          out_(arena.take<T>(kBlock * sums.s.width)),
          grad_query_(arena.take<T>(kBlock * sums.s.rows)),
          partial_(arena.take<T>(kChunk * W<T>)) {}

    // Each query head of the item.
    void run(const Item& item, Range range, const Sums<T>& grad_sums) {
        transposed_.become_transpose_of(sums.s);
        for (std::int64_t group = 0; group < groups_of(call_); ++group) {
            differentiate(item.read_by(group), range, grad_sums);
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;

private:
    void differentiate(const Item& item, Range range, const Sums<T>& grad_sums) {
        const GradientInputs<T> inputs(call_, item);
        const OutRows to = out_rows(call_.grad_query, query_row(call_, item), call_.dim, call_.query_dtype);
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int count = rows_at(first, range.high, kBlock);
            const int size = static_cast<int>(round_up(count, kChunk));
            T h[kBlock];
            inputs.queries(first, size, query_);
            inputs.gradients(first, size, gradient_);
            inputs.normalizer_gradients(first, size, gradient_, out_, partial_, h);
            grad_sums.s.add({query_, 1, sums.s.rows, gradient_, sums.s.width, size});
            add_weighted_rows<T>(grad_sums, query_, h, count);
            if (to.data == nullptr) continue;
            multiply<T>(transposed_.times(gradient_, call_.value_dim), size, sums.s.rows, grad_query_, sums.s.rows);
            add_outer<T>(h, sums.z, count, sums.s.rows, grad_query_);
            store_gradients<T>(to, first, count, grad_query_, query_, call_.map);
        }
    }

    const Matrix<T> transposed_;
    T *const query_, *const gradient_, *const out_, *const grad_query_, *const partial_;
};

// grad k = G v + r and grad v = G^T phi(k) of a range of keys.
template <class T>
class NonCausalKeyGradient {
public:
    NonCausalKeyGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          transposed_(arena, call.value_dim, call.dim),
          key_(arena.take<T>(kBlock * sums.s.rows)),
          value_(arena.take<T>(kBlock * sums.s.width)),
          grad_key_(arena.take<T>(kBlock * sums.s.rows)),
          grad_value_(arena.take<T>(kBlock * sums.s.width)) {}

    void run(const Item& item, Range range) {
        const Inputs<T> inputs(call_, item);
        const OutRows grad_key = out_rows(call_.grad_key, key_row(call_, item), call_.dim, call_.query_dtype);
        const OutRows grad_value = out_rows(call_.grad_value, key_row(call_, item), call_.value_dim, call_.value_dtype);
        transposed_.become_transpose_of(sums.s);
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int count = rows_at(first, range.high, kBlock);
            const int size = static_cast<int>(round_up(count, kChunk));
            inputs.keys(first, size, key_);
            if (grad_value.data != nullptr) differentiate_values(inputs, grad_value, first, count, size);
            if (grad_key.data != nullptr) differentiate_keys(inputs, grad_key, first, count, size);
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;  // G and r

private:
    void differentiate_values(const Inputs<T>& inputs, const OutRows& to, std::int64_t first, int count, int size) {
        multiply<T>(sums.s.times(key_, call_.dim), size, sums.s.width, grad_value_, sums.s.width);
        inputs.erase_absent(first, count, sums.s.width, grad_value_);
        write_rows<T>(to, first, grad_value_, count);
    }

    void differentiate_keys(const Inputs<T>& inputs, const OutRows& to, std::int64_t first, int count, int size) {
        inputs.values(first, size, value_);
        multiply<T>(transposed_.times(value_, call_.value_dim), size, sums.s.rows, grad_key_, sums.s.rows);
        add_to_rows<T>(sums.z, count, sums.s.rows, grad_key_);
        inputs.erase_absent(first, count, sums.s.rows, grad_key_);
        store_gradients<T>(to, first, count, grad_key_, key_, call_.map);
    }

    const Matrix<T> transposed_;
    T *const key_, *const value_, *const grad_key_, *const grad_value_;
};

template <class T>
static void noncausal_backward(const AttentionBackward& call) {
    const std::int64_t query_parts = parts_for(call, call.queries, groups_of(call));
    const PieceSums<T> pieces(call, items_of(call), query_parts);
    share_parts<NonCausalQueryGradient<T>>(call, query_parts, [&](const Item& item, std::int64_t part, auto& pass) {
        const Sums<T> grad_sums = pieces.at(item.state, part);
        grad_sums.clear();
        pass.sums.load_from(call.state, item.state);
        pass.run(item, part_of(item.queries, part, query_parts), grad_sums);
    });
    const std::int64_t key_parts = parts_for(call, call.keys, 1);
    share_parts<NonCausalKeyGradient<T>>(call, key_parts, [&](const Item& item, std::int64_t part, auto& pass) {
        pass.sums.load_from(call.grad_last, item.state);
        pieces.add(item.state, 0, query_parts, pass.sums);
        if (part == 0) pass.sums.save_to(call.grad_initial, item.state);
        // The gradients of keys past the length are written too, as zeros.
        const std::int64_t rows = call.cu_seqlens != nullptr ? item.queries : call.keys;
        pass.run(item, part_of(rows, part, key_parts));
    });
}

LINATTN_END
