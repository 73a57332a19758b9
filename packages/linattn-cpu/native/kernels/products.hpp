// Products of small matrices in scratch, which take nearly all of the time.
#pragma once

#include "simd.hpp"

LINATTN_BEGIN

// The rows of a register tile; its columns are two vectors. The tile's sums, two vectors of b and one number of a
// fill the registers.
inline constexpr int kTileRows = kRegisters == 32 ? 8 : 4;

// How an element of a product enters its sum: a number of the sum's own type.
template <class E>
struct Factor {
    using Sum = E;
    using Vector = Vec<E>;
    static constexpr int kNumbers = 1;
    LINATTN_INLINE Vector broadcast_element(E x) { return broadcast(x); }
    LINATTN_INLINE void add(Vector& sum, Vector x, Vector row) { sum += x * row; }
};

template <class E>
using SumOf = typename Factor<E>::Sum;

// The factors of a product a b: a (rows, depth) with any strides, b (depth, columns) with rows `b_row` elements apart.
template <class E>
struct Product {
    const E* a;
    std::int64_t a_row, a_column;
    const E* b;
    std::int64_t b_row;
    std::int64_t depth;
};

// Where a matrix is not zero: everywhere (full), in row i up to column i (lower), or from column i on (upper).
enum class Triangle { full, lower, upper };

template <class E, int R, int C>
LINATTN_INLINE void add_product(Vec<SumOf<E>> (&sums)[R][C], const E* a, std::int64_t a_row, std::int64_t a_column,
                                const E* b, std::int64_t b_row, std::int64_t depth) {
    using Vector = typename Factor<E>::Vector;
    for (std::int64_t k = 0; k < depth; ++k) {
        Vector row[C];
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) row[c] = load_as<Vector>(b + k * b_row + c * W<SumOf<E>>);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Vector x = Factor<E>::broadcast_element(a[r * a_row + k * a_column]);
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) Factor<E>::add(sums[r][c], x, row[c]);
        }
    }
}

template <class T, int R, int C>
LINATTN_INLINE void store_tile(const Vec<T> (&sums)[R][C], T* out, std::int64_t out_row) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) store<T>(out + r * out_row + c * W<T>, sums[r][c]);
    }
}

// The factor by which a sum decays before more is added. A factor near 1 is applied as 1 + lost: the rounding error of
// the factor itself would be the same at every chunk, and its effect would grow with the length.
template <class T>
struct Decay {
    T factor = T(1), scale = T(1), lost = T(0);  // factor = scale (1 + lost)

    // About log(1/2). A smaller factor is applied as it is: its rounding error soon decays too.
    static constexpr double kLogOfHalf = -0.69;

    // By exp(log), for log <= 0.
    static Decay by(double log) {
        if (log > kLogOfHalf) {
            const double lost = __builtin_expm1(log);
            return {static_cast<T>(1 + lost), T(1), static_cast<T>(lost)};
        }
        const T factor = static_cast<T>(__builtin_exp(log));
        return {factor, factor, T(0)};
    }
    bool is_none() const { return scale == T(1) && lost == T(0); }
};

// sum += x by Kahan's summation: `compensation` is what earlier additions rounded away. With plain sums, a sequence a
// hundred times as long would have one digit less. With `Decays`, the sum decays first.
template <class T, bool Decays = false>
LINATTN_INLINE void kahan_add(T* sum, T* compensation, Vec<T> x, [[maybe_unused]] const Decay<T>& decay = {}) {
    Vec<T> before = load<T>(sum), wanted = load<T>(compensation);
    if constexpr (Decays) {
        before *= decay.scale;
        wanted = x + wanted * decay.factor;
        wanted += before * decay.lost;
    } else {
        wanted += x;
    }
    const Vec<T> after = before + wanted;
    store<T>(sum, after);
    store<T>(compensation, wanted - (after - before));
}

template <class E, int C, class T = SumOf<E>>
LINATTN_LOOP void multiply_columns(const Product<E>& x, std::int64_t rows, std::int64_t column, T* out,
                                   std::int64_t out_row) {
    for (std::int64_t r = 0; r < rows; r += kTileRows) {
        Vec<T> sums[kTileRows][C] = {};
        add_product<E, kTileRows, C>(sums, x.a + r * x.a_row, x.a_row, x.a_column, x.b + column, x.b_row, x.depth);
        store_tile<T, kTileRows, C>(sums, out + r * out_row + column, out_row);
    }
}

// out = a b.
template <class E, class T = SumOf<E>>
static inline void multiply(const Product<E>& x, std::int64_t rows, std::int64_t columns, T* out,
                            std::int64_t out_row) {
    std::int64_t column = 0;
    for (; column + 2 * W<T> <= columns; column += 2 * W<T>) multiply_columns<E, 2>(x, rows, column, out, out_row);
    if (column < columns) multiply_columns<E, 1>(x, rows, column, out, out_row);
}

// A sum over the sequence; see `kahan_add`. Rows are `row` numbers apart.
template <class T>
struct Total {
    T *sum, *compensation;
    std::int64_t row;
};

template <class E, int C, bool Decays, class T = SumOf<E>>
LINATTN_LOOP void accumulate_columns(const Product<E>& x, std::int64_t rows, std::int64_t column, Total<T> total,
                                     Decay<T> decay) {
    for (std::int64_t r = 0; r < rows; r += kTileRows) {
        Vec<T> sums[kTileRows][C] = {};
        const std::int64_t tile = r * total.row + column;
        add_product<E, kTileRows, C>(sums, x.a + r * x.a_row, x.a_row, x.a_column, x.b + column, x.b_row, x.depth);
#pragma GCC unroll 8
        for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) {
                const std::int64_t at = tile + i * total.row + c * W<T>;
                kahan_add<T, Decays>(total.sum + at, total.compensation + at, sums[i][c], decay);
            }
        }
    }
}

// total = total, decayed, + a b.
template <class E, bool Decays, class T = SumOf<E>>
static inline void accumulate(const Product<E>& x, std::int64_t rows, std::int64_t columns, const Total<T>& total,
                              const Decay<T>& decay) {
    std::int64_t column = 0;
    for (; column + 2 * W<T> <= columns; column += 2 * W<T>) {
        accumulate_columns<E, 2, Decays>(x, rows, column, total, decay);
    }
    if (column < columns) accumulate_columns<E, 1, Decays>(x, rows, column, total, decay);
}

// Adds rows r .. r + kTileRows - 1 of a product a b, where a may be triangular.
template <class E, int C, class T = SumOf<E>>
LINATTN_INLINE void add_triangle(Vec<T> (&sums)[kTileRows][C], const Product<E>& x, Triangle triangle, std::int64_t r,
                                 std::int64_t column) {
    const std::int64_t first = triangle == Triangle::upper ? r / Factor<E>::kNumbers : 0;
    const std::int64_t last = triangle == Triangle::lower ? (r + kTileRows) / Factor<E>::kNumbers : x.depth;
    add_product<E, kTileRows, C>(sums, x.a + r * x.a_row + first * x.a_column, x.a_row, x.a_column,
                                 x.b + first * x.b_row + column, x.b_row, last - first);
}

template <class E, int C, class T = SumOf<E>>
LINATTN_LOOP void multiply_both_columns(const Product<E>& x, const Product<E>& other, Triangle triangle,
                                        std::int64_t rows, std::int64_t column, T* out, std::int64_t out_row) {
    for (std::int64_t r = 0; r < rows; r += kTileRows) {
        Vec<T> sums[kTileRows][C] = {};
        add_product<E, kTileRows, C>(sums, x.a + r * x.a_row, x.a_row, x.a_column, x.b + column, x.b_row, x.depth);
        add_triangle<E, C>(sums, other, triangle, r, column);
        store_tile<T, kTileRows, C>(sums, out + r * out_row + column, out_row);
    }
}

// out = a b + c d, where c may be triangular.
template <class E, class T = SumOf<E>>
static inline void multiply_both(const Product<E>& x, const Product<E>& other, Triangle triangle, std::int64_t rows,
                                 std::int64_t columns, T* out, std::int64_t out_row) {
    std::int64_t column = 0;
    for (; column + 2 * W<T> <= columns; column += 2 * W<T>) {
        multiply_both_columns<E, 2>(x, other, triangle, rows, column, out, out_row);
    }
    if (column < columns) multiply_both_columns<E, 1>(x, other, triangle, rows, column, out, out_row);
}

template <class E, int C, class T = SumOf<E>>
LINATTN_LOOP void add_multiple_columns(const Product<E>& x, Triangle triangle, std::int64_t rows, std::int64_t column,
                                       T factor, const T* from, T* to, std::int64_t row) {
    for (std::int64_t r = 0; r < rows; r += kTileRows) {
        Vec<T> sums[kTileRows][C];
        const T* tile = from + r * row + column;
#pragma GCC unroll 8
        for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 4
            for (int c = 0; c < C; ++c) sums[i][c] = load<T>(tile + i * row + c * W<T>) * factor;
        }
        add_triangle<E, C>(sums, x, triangle, r, column);
        store_tile<T, kTileRows, C>(sums, to + r * row + column, row);
    }
}

// to = factor from + a b, where a may be triangular. Rows of `from` and `to`, which may be the same memory, are `row`
// numbers apart.
template <class E, class T = SumOf<E>>
static inline void add_multiple(const Product<E>& x, Triangle triangle, std::int64_t rows, std::int64_t columns,
                                T factor, const T* from, T* to, std::int64_t row) {
    std::int64_t column = 0;
    for (; column + 2 * W<T> <= columns; column += 2 * W<T>) {
        add_multiple_columns<E, 2>(x, triangle, rows, column, factor, from, to, row);
    }
    if (column < columns) add_multiple_columns<E, 1>(x, triangle, rows, column, factor, from, to, row);
}

LINATTN_END
