// grad k and grad v chunk by chunk, for wide heads, grouped heads and trained decay. Within a chunk there is a
// triangular matrix of scores of all keys and queries. For each position, the sweeps of `KeyValueGradient` take four
// products for each number of the state; chunks take three, and their scores, which is less if the state is wide.
#pragma once

#include "chunked_query_gradient.hpp"

LINATTN_BEGIN

// Walks from the end of the sequence to its beginning. The queries of all heads that read the item are stored one head
// after the other, kChunk of each.
//
// The gradient of the decay at position m is the sum over all contributions that have decayed at m, each times its
// gradient: weights of j < m <= i within the chunk; what queries i >= m read from before the chunk (already stored
// there by `ChunkedQueryGradient`); what keys j < m contribute to queries after the chunk; and what passes the whole
// chunk, the state before it times G and r after it. No term is a difference of large numbers.
template <class T>
class ChunkedKeyValueGradient {
public:
    ChunkedKeyValueGradient(Arena& arena, const AttentionBackward& call)
        : call_(call),
          sums(arena, call.dim, call.value_dim),
          decay_(arena, call),
          states_(arena, call),
          width_(sums.s.rows),
          value_width_(sums.s.width),
          rows_(kChunk * groups_of(call)),
          within_(rows_ == kChunk ? Triangle::upper : Triangle::full),
          query_(arena.take<T>(rows_ * width_)),
          key_columns_(arena.take<T>(kChunk * width_)),
          own_key_(arena.take<T>(kChunk * width_)),
          value_columns_(arena.take<T>(kChunk * value_width_)),
          gradient_(arena.take<T>(rows_ * value_width_)),
          h_(arena.take<T>(rows_)),
          weights_(arena.take<T>(rows_ * kChunk)),
          scores_(arena.take<T>(rows_ * kChunk)),
          columns_(arena.take<T>(kChunk * width_)),
          decayed_(arena.take<T>(kChunk * width_)),
          grad_(arena.take<T>(kChunk * (width_ > value_width_ ? width_ : value_width_))) {}

    void run(const Item& item, Range range, const Checkpoints<T>& checkpoints) {
        const OutRows grad_key = out_rows(call_.grad_key, key_row(call_, item), call_.dim, call_.query_dtype);
        const OutRows grad_value = out_rows(call_.grad_value, key_row(call_, item), call_.value_dim, call_.value_dtype);
        const Inputs<T> inputs(call_, item, Direction::backwards);
        const std::int64_t chunks = (range.high - range.low + kChunk - 1) / kChunk;
        for (std::int64_t chunk = chunks - 1; chunk >= 0; --chunk) {
            const std::int64_t first = range.low + chunk * kChunk;
            const int count = rows_at(first, range.high, kChunk);
            const std::int64_t low = first / kBlock * kBlock;
            const bool enters_block = chunk == chunks - 1 || low + kBlock == first + kChunk;
            if (checkpoints.kept() && enters_block) {
                states_.load_from(inputs, low, first, checkpoints.at(low));
            }
            read_keys(inputs, first, checkpoints.kept());
            read_queries(item, first, count);
            if (grad_value.data != nullptr || checkpoints.kept()) weigh();
            if (grad_value.data != nullptr) {
                differentiate_values();
                inputs.erase_absent(first, count, value_width_, grad_);
                write_rows<T>(grad_value, first, grad_, count);
            }
            if (grad_key.data != nullptr || checkpoints.kept()) {
                differentiate_keys(checkpoints.kept());
                inputs.erase_absent(first, count, width_, grad_);
                store_gradients<T>(grad_key, first, count, grad_, key_, call_.map);
            }
            if (checkpoints.kept()) write_decay_gradient(inputs, item, first, count, states_.before(first));
            if (decay_) decay_from_start();
            sums.s.add({query_, 1, width_, gradient_, value_width_, rows_}, decay_.across());
            add_weighted_rows<T>(sums, query_, h_, rows_, decay_.across());
        }
    }

private:
    const AttentionBackward& call_;

public:
    const Sums<T> sums;  // G and r

private:
    void read_keys(const Inputs<T>& inputs, std::int64_t first, bool from_block) {
        const T* value = grad_;
        if (from_block) {
            key_ = states_.keys(first);
            value = states_.values(first);
        } else {
            key_ = own_key_;
            inputs.keys(first, kChunk, own_key_);
            inputs.values(first, kChunk, grad_);
        }
        decay_.load_from(inputs, first);
        transpose<T>(value, kChunk, value_width_, value_width_, value_columns_, kChunk);
    }

    void read_queries(const Item& item, std::int64_t first, int count) {
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
    }

    // The decayed weights, with queries as rows.
    void weigh() {
        transpose<T>(key_, kChunk, width_, width_, key_columns_, kChunk);
        for (std::int64_t row = 0; row < rows_; row += kChunk) {
            T* at = weights_ + row * kChunk;
            scores<T>(query_ + row * width_, width_, key_columns_, call_.dim, at);
            decay_.within(at);
        }
    }

    // grad v = G^T phi(k).
    void differentiate_values() {
        if (decay_) scale_rows<T>(decay_.to_end(), kChunk, width_, {key_, width_}, decayed_);
        multiply_both<T>(sums.s.times(decay_ ? decayed_ : key_, call_.dim),
                         {weights_, 1, kChunk, gradient_, value_width_, rows_}, within_, kChunk, value_width_, grad_,
                         value_width_);
    }

    // grad phi(k) = G v + r. G v is computed transposed, because G is stored by rows.
    void differentiate_keys(bool with_decay) {
        for (std::int64_t row = 0; row < rows_; row += kChunk) {
            T* at = scores_ + row * kChunk;
            scores<T>(gradient_ + row * value_width_, value_width_, value_columns_, call_.value_dim, at);
            add_to_lower<T>(at, h_ + row);
        }
        if (with_decay) sum_passing_scores();
        for (std::int64_t row = 0; row < rows_; row += kChunk) decay_.within(scores_ + row * kChunk);
        multiply<T>({sums.s.sum, value_width_, 1, value_columns_, kChunk, call_.value_dim}, width_, kChunk, columns_,
                    kChunk);
        transpose<T>(columns_, width_, kChunk, kChunk, grad_, width_);
        if (decay_) scale_rows<T>(decay_.to_end(), kChunk, width_, grad_);
        add_outer<T>(decay_.to_end(), sums.z, kChunk, width_, grad_);
        if (with_decay) {
            std::memset(writes_, 0, sizeof writes_);
            add_row_products<T>(key_, grad_, width_, writes_);
        }
        add_multiple<T>({scores_, 1, kChunk, query_, width_, rows_}, within_, kChunk, width_, T(1), grad_, grad_,
                        width_);
    }

    // passing_[m] = the sum of weights times their gradients over j < m <= i in the chunk. Here the gradients have not
    // decayed yet; the weights have.
    void sum_passing_scores() {
        T products[kChunk * kChunk] = {};
        for (std::int64_t row = 0; row < rows_; row += kChunk) {
            add_products<T>(weights_ + row * kChunk, scores_ + row * kChunk, kChunk * kChunk, products);
        }
        sum_passing<T>(products, passing_);
    }

    // `before`: the state before the chunk.
    void write_decay_gradient(const Inputs<T>& inputs, const Item& item, std::int64_t first, int count,
                              const T* before) {
        T* to = static_cast<T*>(call_.grad_log_decay) + key_row(call_, item) + first;
        double written[kChunk + 1] = {}, read = 0;
        for (int j = 0; j < kChunk; ++j) written[j + 1] = written[j] + writes_[j];
        const double through = decay_.across().factor * sums.product(before);
        for (int m = count - 1; m >= 0; --m) {
            read += to[m];
            to[m] = static_cast<T>(passing_[m] + read + written[m] + through);
        }
        inputs.erase_absent(first, count, 1, to);
    }

    // Multiplies gradients and h by the decay from the start of the chunk, before they are added to G and r.
    void decay_from_start() {
        for (std::int64_t row = 0; row < rows_; row += kChunk) {
            scale_rows<T>(decay_.from_start(), kChunk, value_width_, gradient_ + row * value_width_);
            multiply_into<T>(decay_.from_start(), kChunk, h_ + row);
        }
    }

    ChunkDecay<T> decay_;
    StatesOfBlock<T> states_;
    const std::int64_t width_, value_width_, rows_;
    const Triangle within_;  // where keys and queries of a chunk see each other, with keys as rows
    T* const query_;
    T* const key_columns_;
    T* const own_key_;
    const T* key_;  // of the chunk: own_key_, or in states_
    T* const value_columns_;
    T* const gradient_;
    T* const h_;
    T* const weights_;
    T* const scores_;
    T* const columns_;
    T* const decayed_;
    T* const grad_;
    T writes_[kChunk], passing_[kChunk];
};

LINATTN_END
