// The states before every chunk of one block, for the gradient of the decay: a pass that walks backwards needs them, and
// computes them again from the state before the block.
#pragma once

#include "sums.hpp"

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

// The keys, the values and the states before the chunks of one block. Empty unless the gradient of the decay is wanted.
template <class T>
class StatesOfBlock {
public:
    StatesOfBlock(Arena& arena, const AttentionBackward& call)
        : width_(call.grad_log_decay == nullptr ? 0 : padded<T>(call.dim)),
          value_width_(call.grad_log_decay == nullptr ? 0 : padded<T>(call.value_dim)),
          numbers_(width_ * (value_width_ + 1)),
          states_(arena.take<T>(kBlock / kChunk * numbers_)),
          compensation_(arena.take<T>(numbers_)),
          key_(arena.take<T>(kBlock * width_)),
          value_(arena.take<T>(kBlock * value_width_)),
          decayed_(arena.take<T>(kChunk * value_width_)) {}

    // For the chunks from position `low`, the start of a block, to that at `high`; from `checkpoint`, the state before
    // the block.
    void load_from(const Inputs<T>& inputs, std::int64_t low, std::int64_t high, const T* checkpoint) {
        const int size = static_cast<int>(high - low) + kChunk;
        inputs.keys(low, size, key_);
        inputs.values(low, size, value_);
        std::memcpy(state(low), checkpoint, sizeof(T) * numbers_);
        std::memset(compensation_, 0, sizeof(T) * numbers_);
        for (std::int64_t first = low; first < high; first += kChunk) add_chunk(inputs, first);
    }

    // S (D, M) followed by z (D), padded, before the chunk at `first`.
    const T* before(std::int64_t first) const { return state(first); }
    // The rows of the chunk at `first`.
    const T* keys(std::int64_t first) const { return key_ + first % kBlock * width_; }
    const T* values(std::int64_t first) const { return value_ + first % kBlock * value_width_; }

private:
    T* state(std::int64_t first) const { return states_ + first % kBlock / kChunk * numbers_; }

    // The state after the chunk at `first`, from the state before it.
    void add_chunk(const Inputs<T>& inputs, std::int64_t first) {
        T to_end[kChunk];
        inputs.log_decays(first, kChunk, to_end);
        const Decay<T> across = Decay<T>::by(logs_to_end<T>(to_end, kChunk));
        exponentiate<T>(kChunk, to_end);
        std::memcpy(decayed_, values(first), sizeof(T) * kChunk * value_width_);
        scale_rows<T>(to_end, kChunk, value_width_, decayed_);
        const T* from = state(first);
        T* to = state(first + kChunk);
        accumulate<T, true>({keys(first), 1, width_, decayed_, value_width_, kChunk}, width_, value_width_,
                            {from, to, compensation_, value_width_}, across);
        const std::int64_t z = width_ * value_width_;
        add_weighted_rows<T>({from + z, to + z, compensation_ + z, width_}, keys(first), to_end, kChunk, across);
    }

    const std::int64_t width_, value_width_, numbers_;
    T *const states_, *const compensation_, *const key_, *const value_, *const decayed_;
};

LINATTN_END
