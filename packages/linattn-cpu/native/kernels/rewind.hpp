// The states before every chunk of one block, for the gradient of the decay: a pass that walks backwards needs them, and
// computes them again from the state before the block.
#pragma once

#include "sums.hpp"

LINATTN_BEGIN

// S and z before every block of one item, which the first pass of the backward pass keeps for the second: N D M / kBlock
// numbers. Only the gradient of the decay needs them; without it nothing is kept.
template <class T>
class Checkpoints {
public:
    Checkpoints(const AttentionBackward& call, T* states)
        : kept_(call.grad_log_decay != nullptr),
          numbers_(kept_ ? padded<T>(call.dim) * (padded<T>(call.value_dim) + 1) : 0),
          states_(states) {}

    // The numbers for an item with `queries` positions.
    static std::int64_t size_for(const AttentionBackward& call, std::int64_t queries) {
        return Checkpoints(call, nullptr).numbers_ * (queries / kBlock + 1);
    }

    // Whether S and z are kept.
    bool kept() const { return kept_; }

    // S (D, M) followed by z (D), padded, before position `first`, a multiple of kBlock.
    T* at(std::int64_t first) const { return states_ + first / kBlock * numbers_; }

private:
    const bool kept_;
    const std::int64_t numbers_;
    T* const states_;
};

// The checkpoints of all items, for calls whose sequences are cut into parts. Empty unless the gradient of the decay is
// wanted.
template <class T>
class CheckpointsOfItems {
public:
    explicit CheckpointsOfItems(const AttentionBackward& call)
        : call_(call),
          size_(Checkpoints<T>::size_for(call, longest_sequence(call))),
          scratch_(sizeof(T) * size_ * items_of(call)) {
        expect_writes(scratch_.get(), sizeof(T) * size_ * items_of(call), call.threads);
    }

    Checkpoints<T> of(const Item& item) const { return {call_, static_cast<T*>(scratch_.get()) + size_ * item.state}; }

private:
    const AttentionBackward& call_;
    const std::int64_t size_;
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
        for (std::int64_t first = low; first < high; first += kChunk) add_chunk(inputs, first);
    }

    // S (D, M) followed by z (D), padded, before the chunk at `first`.
    const T* before(std::int64_t first) const { return state(first); }
    // The rows of the chunk at `first`.
    const T* keys(std::int64_t first) const { return key_ + first % kBlock * width_; }
    const T* values(std::int64_t first) const { return value_ + first % kBlock * value_width_; }

private:
    T* state(std::int64_t first) const { return states_ + first % kBlock / kChunk * numbers_; }

    // The state after the chunk at `first`, from the state before it. A block has too few chunks for rounding errors to
    // need compensation.
    void add_chunk(const Inputs<T>& inputs, std::int64_t first) {
        T to_end[kChunk];
        inputs.log_decays(first, kChunk, to_end);
        const T across = Decay<T>::by(logs_to_end<T>(to_end, kChunk)).factor;
        exponentiate<T>(kChunk, to_end);
        scale_rows<T>(to_end, kChunk, value_width_, {values(first), value_width_}, decayed_);
        const T* from = state(first);
        T* to = state(first + kChunk);
        add_multiple<T>({keys(first), 1, width_, decayed_, value_width_, kChunk}, Triangle::full, width_, value_width_,
                        across, from, to, value_width_);
        for (std::int64_t d = 0, z = width_ * value_width_; d < width_; d += W<T>) {
            Vec<T> sum = load<T>(from + z + d) * across;
            for (int t = 0; t < kChunk; ++t) sum += to_end[t] * load<T>(keys(first) + t * width_ + d);
            store<T>(to + z + d, sum);
        }
    }

    const std::int64_t width_, value_width_, numbers_;
    T *const states_, *const key_, *const value_, *const decayed_;
};

LINATTN_END
