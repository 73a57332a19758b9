// Sums over a part of a sequence, of which no position waits for another: the state that a later
// part starts from, and both halves of non-causal attention.
#pragma once

#include "inputs.hpp"
#include "state.hpp"

LINATTN_BEGIN

// Adds rows to sums: s += a^T b, z += the sum of w_i a_i, for blocks of up to kBlock rows.
template <class T>
class Adder {
public:
    Adder(Arena& arena, std::int64_t dim) : columns_(arena.take<T>(padded<T>(dim) * kBlock)) {}

    // a (size, D), b (size, M); `size` is a multiple of kChunk.
    void add(const Sums<T>& sums, const T* a, const T* b, int size) const {
        transpose<T>(a, size, sums.s.rows, sums.s.rows, columns_, size);
        sums.s.add(columns_, b, size);
    }

private:
    T* columns_;
};

// z += the sum of weights[t] rows[t].
template <class T>
static inline void add_weighted_rows(const Sums<T>& sums, const T* rows, const T* weights, int count) {
    for (std::int64_t d = 0; d < sums.s.rows; d += W<T>) {
        Vec<T> sum{};
        for (int t = 0; t < count; ++t) sum += weights[t] * load<T>(rows + t * sums.s.rows + d);
        kahan_add<T>(sums.z + d, sums.z_compensation + d, sum);
    }
}

// z += the sum of rows.
template <class T>
static inline void add_rows(const Sums<T>& sums, const T* rows, int count) {
    for (std::int64_t d = 0; d < sums.s.rows; d += W<T>) {
        Vec<T> sum{};
        for (int t = 0; t < count; ++t) sum += load<T>(rows + t * sums.s.rows + d);
        kahan_add<T>(sums.z + d, sums.z_compensation + d, sum);
    }
}

// S += phi(k) v^T, z += phi(k) over a range of keys.
template <class T>
class KeySums {
public:
    KeySums(Arena& arena, const Attention& call)
        : adder_(arena, call.dim),
          key_(arena.take<T>(kBlock * padded<T>(call.dim))),
          value_(arena.take<T>(kBlock * padded<T>(call.value_dim))) {}

    void add(const Attention& call, const Item& item, Range range, const Sums<T>& sums) const {
        const Inputs<T> inputs(call, item);
        if (range.high > item.keys) range.high = item.keys;
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int size = static_cast<int>(round_up(rows_at(first, range.high, kBlock), kChunk));
            inputs.keys(first, size, key_);
            inputs.values(first, size, value_);
            adder_.add(sums, key_, value_, size);
            add_rows<T>(sums, key_, size);
        }
    }

private:
    Adder<T> adder_;
    T *key_, *value_;
};

// dS += phi(q) g^T, dz += h phi(q) over a range of queries whose h stand in call.scratch.
template <class T>
class QuerySums {
public:
    QuerySums(Arena& arena, const Attention& call)
        : adder_(arena, call.dim),
          query_(arena.take<T>(kBlock * padded<T>(call.dim))),
          gradient_(arena.take<T>(kBlock * padded<T>(call.value_dim))) {}

    // Each query head of the item.
    void add(const AttentionBackward& call, const Item& item, Range range, const Sums<T>& sums) const {
        for (std::int64_t group = 0; group < groups_of(call); ++group) {
            add_head(call, item.read_by(group), range, sums);
        }
    }

private:
    void add_head(const AttentionBackward& call, const Item& item, Range range, const Sums<T>& sums) const {
        const GradientInputs<T> inputs(call, item);
        const T* h = static_cast<const T*>(call.scratch) + query_row(call, item);
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int count = rows_at(first, range.high, kBlock);
            const int size = static_cast<int>(round_up(count, kChunk));
            inputs.queries(first, size, query_);
            inputs.gradients(first, size, gradient_);
            adder_.add(sums, query_, gradient_, size);
            add_weighted_rows<T>(sums, query_, h + first, count);
        }
    }

    Adder<T> adder_;
    T *query_, *gradient_;
};

// The sums of every piece of every item, in memory of their own, and what follows from them.
template <class T>
class PieceSums {
public:
    PieceSums(const Attention& call, std::int64_t items, std::int64_t pieces)
        : call_(call), pieces_(pieces), bytes_(bytes_for(call)), scratch_(bytes_ * items * pieces) {}

    Sums<T> at(std::int64_t item, std::int64_t piece) const {
        Arena arena(static_cast<char*>(scratch_.get()) + bytes_ * (item * pieces_ + piece));
        return Sums<T>(arena, call_.dim, call_.value_dim);
    }

    // Adds the pieces low .. high of an item.
    void add(std::int64_t item, std::int64_t low, std::int64_t high, const Sums<T>& to) const {
        for (std::int64_t piece = low; piece < high; ++piece) to.add(at(item, piece));
    }

private:
    static std::int64_t bytes_for(const Attention& call) {
        Arena arena(nullptr);
        const Sums<T> sums(arena, call.dim, call.value_dim);
        return arena.bytes();
    }

    const Attention& call_;
    const std::int64_t pieces_, bytes_;
    const Scratch scratch_;
};

// Every part of a sequence is summed in two pieces: with two parts, of which only one has to be
// summed beforehand, that makes work for both threads.
inline constexpr std::int64_t kPieces = 2;

LINATTN_INLINE Range piece_of(Range part, std::int64_t piece) {
    const Range inside = part_of(part.high - part.low, piece, kPieces);
    return {part.low + inside.low, part.low + inside.high};
}

LINATTN_END
