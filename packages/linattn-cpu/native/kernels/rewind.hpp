// The states before every chunk of one block, for the gradient of the decay: a pass that walks backwards needs them, and
// computes them again from the state before the block.
#pragma once

#include "chunk_rows.hpp"

LINATTN_BEGIN

// The first pass of the backward pass keeps S and z before every block for the second: N D M / kBlock numbers per head.
// Only the gradient of the decay needs them; without it nothing is kept.
template <class T>
class Checkpoints {
public:
    explicit Checkpoints(const AttentionBackward& call)
        : kept_(call.grad_log_decay != nullptr),
          packed_(call.cu_seqlens != nullptr),
          kv_heads_(call.kv_heads),
          blocks_(call.queries / kBlock + 1),
          numbers_(padded<T>(call.dim) * (padded<T>(call.value_dim) + 1)),
          bytes_(kept_ ? sizeof(T) * numbers_ * kv_heads_ * per_head(call) : 0),
          scratch_(bytes_) {
        expect_writes(scratch_.get(), bytes_);
    }

    // Whether S and z are kept.
    bool kept() const { return kept_; }

    // S (D, M) followed by z (D), padded, before position `first` of an item, a multiple of kBlock.
    T* at(const Attention& call, const Item& item, std::int64_t first) const {
        const std::int64_t sequence = item.state / kv_heads_;
        const std::int64_t start = packed_ ? item.start / kBlock + sequence : sequence * blocks_;
        const std::int64_t slot = item.head * per_head(call) + start + first / kBlock;
        return static_cast<T*>(scratch_.get()) + slot * numbers_;
    }

private:
    // Sequences have at most one block more than their length fills.
    std::int64_t per_head(const Attention& call) const {
        return packed_ ? call.queries / kBlock + call.sequences : call.sequences * blocks_;
    }

    const bool kept_, packed_;
    const std::int64_t kv_heads_, blocks_, numbers_, bytes_;
    const Scratch scratch_;
};

// Empty unless the gradient of the decay is wanted.
template <class T>
class StatesOfBlock {
public:
    StatesOfBlock(Arena& arena, const AttentionBackward& call)
        : sums_(arena, call.grad_log_decay == nullptr ? 0 : call.dim,
                call.grad_log_decay == nullptr ? 0 : call.value_dim),
          numbers_(sums_.s.rows * (sums_.s.width + 1)),
          states_(arena.take<T>(kBlock / kChunk * numbers_)),
          key_columns_(arena.take<T>(kChunk * sums_.s.rows)),
          chunk_(arena, call) {}

    // The states before the chunks from position `low`, the start of a block, to that at `high`; from `checkpoint`, the
    // state before the block.
    void load_from(const Inputs<T>& inputs, std::int64_t low, std::int64_t high, const T* checkpoint) {
        load_sums(checkpoint);
        for (std::int64_t first = low; first < high; first += kChunk) {
            save_sums(at(first));
            add_chunk(inputs, first);
        }
        save_sums(at(high));
    }

    // S (D, M) followed by z (D), padded, before the chunk at `first`.
    const T* before(std::int64_t first) const { return at(first); }

private:
    T* at(std::int64_t first) const { return states_ + first % kBlock / kChunk * numbers_; }

    void load_sums(const T* from) const {
        sums_.clear();
        std::memcpy(sums_.s.sum, from, sizeof(T) * sums_.s.rows * sums_.s.width);
        std::memcpy(sums_.z, from + sums_.s.rows * sums_.s.width, sizeof(T) * sums_.s.rows);
    }
    void save_sums(T* to) const {
        std::memcpy(to, sums_.s.sum, sizeof(T) * sums_.s.rows * sums_.s.width);
        std::memcpy(to + sums_.s.rows * sums_.s.width, sums_.z, sizeof(T) * sums_.s.rows);
    }

    void add_chunk(const Inputs<T>& inputs, std::int64_t first) {
        chunk_.load_keys(inputs, first);
        chunk_.add_keys(sums_, key_columns_);
    }

    const Sums<T> sums_;
    const std::int64_t numbers_;
    T *const states_, *const key_columns_;
    ChunkRows<T> chunk_;
};

LINATTN_END
