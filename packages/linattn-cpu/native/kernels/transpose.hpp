// Transposes matrices by blocks in registers.
#pragma once

#include <utility>

#include "simd.hpp"

LINATTN_BEGIN

// Exchanges, in blocks of S lanes, the upper half of `a` with the lower half of `b`.
template <int S, class V, std::size_t... I>
LINATTN_INLINE void exchange(V& a, V& b, std::index_sequence<I...>) {
    constexpr int lanes = sizeof...(I);
    const V low = __builtin_shufflevector(a, b, ((I & S) ? lanes + I - S : I)...);
    const V high = __builtin_shufflevector(a, b, ((I & S) ? lanes + I : I + S)...);
    a = low;
    b = high;
}

template <int S, class T>
LINATTN_INLINE void exchange_all(Vec<T> (&rows)[W<T>]) {
#pragma GCC unroll 16
    for (int i = 0; i < W<T>; ++i) {
        if ((i & S) == 0) exchange<S>(rows[i], rows[i + S], std::make_index_sequence<W<T>>());
    }
    if constexpr (2 * S < W<T>) exchange_all<2 * S, T>(rows);
}

// Transposes W vectors of W numbers in place.
template <class T>
LINATTN_INLINE void transpose_block(Vec<T> (&rows)[W<T>]) {
    exchange_all<1, T>(rows);
}

// Lane i of the result is the sum of all lanes of rows[i], by repeated halving: every addition halves the vectors that are
// left, so the sums take a quarter of the shuffles of a transposition.
template <class T, int S = W<T> / 2>
LINATTN_INLINE Vec<T> sum_block(Vec<T> (&rows)[W<T>]) {
#pragma GCC unroll 8
    for (int i = 0; i < S; ++i) {
        exchange<S>(rows[i], rows[i + S], std::make_index_sequence<W<T>>());
        rows[i] += rows[i + S];
    }
    if constexpr (S > 1) return sum_block<T, S / 2>(rows);
    return rows[0];
}

// (rows, columns) with rows `width` numbers apart -> (columns, rows); both sizes are multiples of W.
template <class T>
LINATTN_LOOP void transpose(const T* from, std::int64_t rows, std::int64_t columns, std::int64_t width, T* to,
                            std::int64_t to_width) {
    for (std::int64_t r = 0; r < rows; r += W<T>) {
        for (std::int64_t c = 0; c < columns; c += W<T>) {
            Vec<T> block[W<T>];
#pragma GCC unroll 16
            for (int i = 0; i < W<T>; ++i) block[i] = load<T>(from + (r + i) * width + c);
            transpose_block<T>(block);
#pragma GCC unroll 16
            for (int i = 0; i < W<T>; ++i) store<T>(to + (c + i) * to_width + r, block[i]);
        }
    }
}

LINATTN_END
