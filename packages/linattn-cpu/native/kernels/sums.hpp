// Sums over a part of a sequence, whose positions are independent: for the state at the start of a later part, and for
// both halves of non-causal attention.
#pragma once

#include "decay.hpp"
#include "state.hpp"

LINATTN_BEGIN

// Decays z and adds the sum of weights[t] rows[t].
template <class T>
static inline void add_weighted_rows(const Sums<T>& sums, const T* rows, const T* weights, int count,
                                     const Decay<T>& decay = {}) {
    for (std::int64_t d = 0; d < sums.s.rows; d += W<T>) {
        Vec<T> sum{};
        for (int t = 0; t < count; ++t) sum += weights[t] * load<T>(rows + t * sums.s.rows + d);
        kahan_add<T, true>(sums.z + d, sums.z_compensation + d, sum, decay);
    }
}

// Decays z and adds the sum of rows.
template <class T>
static inline void add_rows(const Sums<T>& sums, const T* rows, int count, const Decay<T>& decay = {}) {
    for (std::int64_t d = 0; d < sums.s.rows; d += W<T>) {
        Vec<T> sum{};
        for (int t = 0; t < count; ++t) sum += load<T>(rows + t * sums.s.rows + d);
        kahan_add<T, true>(sums.z + d, sums.z_compensation + d, sum, decay);
    }
}

// S += phi(k) v^T, z += phi(k) over a range of keys, each decayed up to the end of the range.
template <class T>
class KeySums {
public:
    KeySums(Arena& arena, const Attention& call)
        : key_(arena.take<T>(kBlock * padded<T>(call.dim))),
          value_(arena.take<T>(kBlock * padded<T>(call.value_dim))) {}

    // Returns the sum of the range's decay.
    double add(const Attention& call, const Item& item, Range range, const Sums<T>& sums) const {
        if (call.log_decay != nullptr) return add_decaying(call, item, range, sums);
        const Inputs<T> inputs(call, item);
        if (range.high > item.keys) range.high = item.keys;
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int size = load_keys(inputs, first, range.high);
            add_block(inputs, first, size, sums);
        }
        return 0;
    }

private:
    // From the last block to the first, so that `later`, the sum of the logarithms after a block, is known.
    double add_decaying(const Attention& call, const Item& item, Range range, const Sums<T>& sums) const {
        const Inputs<T> inputs(call, item, Direction::backwards);
        double later = 0;
        if (range.high > item.keys) range.high = item.keys;
        for (std::int64_t blocks = (range.high - range.low + kBlock - 1) / kBlock; blocks > 0; --blocks) {
            const std::int64_t first = range.low + (blocks - 1) * kBlock;
            const int size = load_keys(inputs, first, range.high);
            T remaining[kBlock] = {};
            inputs.log_decays(first, rows_at(first, range.high, kBlock), remaining);
            later = logs_to_end<T>(remaining, kBlock, later);
            exponentiate<T>(kBlock, remaining);
            scale_rows<T>(remaining, size, sums.s.rows, key_);
            add_block(inputs, first, size, sums);
        }
        return later;
    }

    // Returns the number of rows, a multiple of kChunk.
    int load_keys(const Inputs<T>& inputs, std::int64_t first, std::int64_t end) const {
        const int size = static_cast<int>(round_up(rows_at(first, end, kBlock), kChunk));
        inputs.keys(first, size, key_);
        return size;
    }

    // Adds the loaded keys and their values.
    void add_block(const Inputs<T>& inputs, std::int64_t first, int size, const Sums<T>& sums) const {
        const ContiguousRows<T> values = inputs.values_in_place(first, size, value_);
        sums.s.add({key_, 1, sums.s.rows, values.data, values.step, size});
        add_rows<T>(sums, key_, size);
    }

    T *const key_, *const value_;
};

// dS += phi(q) g^T, dz += h phi(q) over a range of queries, each decayed from the start of the range. h is read from
// call.scratch.
template <class T>
class QuerySums {
public:
    QuerySums(Arena& arena, const Attention& call)
        : query_(arena.take<T>(kBlock * padded<T>(call.dim))),
          gradient_(arena.take<T>(kBlock * padded<T>(call.value_dim))) {}

    // Each query head of the item. Returns the sum of the range's decay.
    double add(const AttentionBackward& call, const Item& item, Range range, const Sums<T>& sums) const {
        double decay = 0;
        for (std::int64_t group = 0; group < groups_of(call); ++group) {
            decay = add_head(call, item.read_by(group), range, sums);
        }
        return decay;
    }

private:
    double add_head(const AttentionBackward& call, const Item& item, Range range, const Sums<T>& sums) const {
        const GradientInputs<T> inputs(call, item);
        const T* h = static_cast<const T*>(call.scratch) + query_row(call, item);
        double earlier = 0;
        for (std::int64_t first = range.low; first < range.high; first += kBlock) {
            const int count = rows_at(first, range.high, kBlock);
            const int size = static_cast<int>(round_up(count, kChunk));
            inputs.queries(first, size, query_);
            inputs.gradients(first, size, gradient_);
            if (call.log_decay != nullptr) earlier = decay_from_start(inputs, first, size, earlier, sums.s.rows);
            sums.s.add({query_, 1, sums.s.rows, gradient_, sums.s.width, size});
            add_weighted_rows<T>(sums, query_, h + first, count);
        }
        return earlier;
    }

    double decay_from_start(const Inputs<T>& inputs, std::int64_t first, int size, double earlier,
                            std::int64_t width) const {
        T remaining[kBlock];
        inputs.log_decays(first, size, remaining);
        earlier = accumulate_logs<T>(remaining, size, earlier);
        exponentiate<T>(size, remaining);
        scale_rows<T>(remaining, size, width, query_);
        return earlier;
    }

    T *const query_, *const gradient_;
};

// Memory for the sums of every piece of every item, and their addition.
template <class T>
class PieceSums {
public:
    PieceSums(const Attention& call, std::int64_t items, std::int64_t pieces)
        : call_(call),
          pieces_(pieces),
          bytes_(bytes_for(call)),
          scratch_(bytes_ * items * pieces),
          decays_(call.log_decay == nullptr ? 0 : sizeof(double) * items * pieces) {}

    Sums<T> at(std::int64_t item, std::int64_t piece) const {
        Arena arena(static_cast<char*>(scratch_.get()) + bytes_ * (item * pieces_ + piece));
        return Sums<T>(arena, call_.dim, call_.value_dim);
    }

    // Sets the decay of the state over a piece: exp(decay).
    void set_decay(std::int64_t item, std::int64_t piece, double decay) const {
        if (call_.log_decay != nullptr) decay_of(item, piece) = decay;
    }

    // Adds the pieces low .. high - 1 of an item, in the order of a pass.
    void add(std::int64_t item, std::int64_t low, std::int64_t high, const Sums<T>& to,
             Direction direction = Direction::forwards) const {
        for (std::int64_t i = 0; i < high - low; ++i) {
            const std::int64_t piece = direction == Direction::forwards ? low + i : high - 1 - i;
            to.add(at(item, piece), decay_over(item, piece));
        }
    }

private:
    double& decay_of(std::int64_t item, std::int64_t piece) const {
        return static_cast<double*>(decays_.get())[item * pieces_ + piece];
    }

    Decay<T> decay_over(std::int64_t item, std::int64_t piece) const {
        return call_.log_decay == nullptr ? Decay<T>{} : Decay<T>::by(decay_of(item, piece));
    }

    static std::int64_t bytes_for(const Attention& call) {
        Arena arena(nullptr);
        const Sums<T> sums(arena, call.dim, call.value_dim);
        return arena.bytes();
    }

    const Attention& call_;
    const std::int64_t pieces_, bytes_;
    const Scratch scratch_, decays_;
};

// Every part of a sequence is summed in two pieces: with two parts, only one has to be summed beforehand, and its two
// pieces give both threads work.
inline constexpr std::int64_t kPieces = 2;

LINATTN_INLINE Range piece_of(Range part, std::int64_t piece) {
    const Range inside = part_of(part.high - part.low, piece, kPieces);
    return {part.low + inside.low, part.low + inside.high};
}

LINATTN_END
