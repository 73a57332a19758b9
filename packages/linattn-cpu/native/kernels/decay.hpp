// The factors by which earlier positions have decayed. With g_m the logarithms of the decay, each at most 0, every
// factor is exp of a sum of g, never of a difference, so none exceeds 1.
#pragma once

#include "inputs.hpp"
#include "products.hpp"

LINATTN_BEGIN

// Row i of `count` rows *= factors[i].
template <class T>
LINATTN_INLINE void scale_rows(const T* factors, int count, std::int64_t width, T* rows) {
    scale_rows<T>(factors, count, width, {rows, width}, rows);
}

// x *= y, for `count` numbers, a multiple of W.
template <class T>
LINATTN_INLINE void multiply_into(const T* y, std::int64_t count, T* x) {
    for (std::int64_t i = 0; i < count; i += W<T>) store<T>(x + i, load<T>(x + i) * load<T>(y + i));
}

// Every row of (rows, kChunk) *= factors (kChunk).
template <class T>
LINATTN_LOOP void scale_columns(const T* factors, std::int64_t rows, T* columns) {
    for (std::int64_t r = 0; r < rows; ++r) multiply_into<T>(factors, kChunk, columns + r * kChunk);
}

// x[i] = `sum` + the sum of x up to and including i, for x (count); returns the last.
template <class T>
LINATTN_INLINE double accumulate_logs(T* x, int count, double sum = 0) {
    for (int i = 0; i < count; ++i) x[i] = static_cast<T>(sum += x[i]);
    return sum;
}

// x[j] = the sum of x after j, + `later`, for x (count); returns the sum of all.
template <class T>
LINATTN_INLINE double logs_to_end(T* x, int count, double later = 0) {
    for (int j = count - 1; j >= 0; --j) {
        const T own = x[j];
        x[j] = static_cast<T>(later);
        later += own;
    }
    return later;
}

// x = exp(x) for x <= 0, for `count` numbers, a multiple of W.
template <class T>
LINATTN_LOOP void exponentiate(std::int64_t count, T* x) {
    for (std::int64_t i = 0; i < count; i += W<T>) store<T>(x + i, exp_of_negative(load<T>(x + i)));
}

// passing[m] = the sum of x_ij over j < m <= i, for x (kChunk, kChunk).
template <class T>
LINATTN_LOOP void sum_passing(const T* x, T* passing) {
    T below[kChunk] = {};  // for each j, the sum over i >= m
    for (int m = kChunk - 1; m >= 0; --m) {
        Vec<T> sums{};
        for (int column = 0; column < kChunk; column += W<T>) {
            const Vec<T> now = load<T>(below + column) + load<T>(x + m * kChunk + column);
            store<T>(below + column, now);
            sums += lane_numbers<T>() + T(column) < T(m) ? now : Vec<T>{};
        }
        passing[m] = sum<T>(sums);
    }
}

// The factors of one chunk. Without decay they are 1, and nothing is multiplied.
template <class T>
class ChunkDecay {
public:
    ChunkDecay(Arena& arena, const Attention& call)
        : decays_(call.log_decay != nullptr),
          between_(arena.take<T>(kChunk * kChunk)),
          from_start_(arena.take<T>(kChunk)) {
        for (int i = 0; i < kChunk * kChunk && !decays_ && !arena.counts(); ++i) between_[i] = T(1);
    }

    explicit operator bool() const { return decays_; }
    // exp of the sum of g up to and including each position: the decay from the start of the chunk to it.
    const T* from_start() const { return from_start_; }
    // exp of the sum of g after each position: the decay from it to the end of the chunk.
    const T* to_end() const { return between_ + (kChunk - 1) * kChunk; }
    // The decay of the state over the whole chunk.
    const Decay<T>& across() const { return across_; }

    void load_from(const Inputs<T>& inputs, std::int64_t first) {
        if (!decays_) return;
        inputs.log_decays(first, kChunk, from_start_);
        sum_between();
        across_ = Decay<T>::by(accumulate_logs<T>(from_start_, kChunk));
        exponentiate<T>(kChunk * kChunk, between_);
        exponentiate<T>(kChunk, from_start_);
    }

    // Scores (kChunk, kChunk), with queries i as rows and keys j as columns, *= exp of the sum of g over j < m <= i.
    void within(T* scores) const {
        if (decays_) multiply_into<T>(between_, kChunk * kChunk, scores);
    }

private:
    // Row i: the sums of g over j < m <= i; 0 for j >= i.
    void sum_between() const {
        std::memset(between_, 0, sizeof(T) * kChunk);
        for (int i = 1; i < kChunk; ++i) {
            for (int column = 0; column < kChunk; column += W<T>) {
                const Vec<T> lanes = lane_numbers<T>() + T(column);
                T* at = between_ + i * kChunk + column;
                const Vec<T> sums = load<T>(at - kChunk) + from_start_[i];
                store<T>(at, lanes < T(i) ? sums : Vec<T>{});
            }
        }
    }

    const bool decays_;
    T *const between_, *const from_start_;
    Decay<T> across_;
};

LINATTN_END
