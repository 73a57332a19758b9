// What the passes share: scores within a chunk, sums of rows, and the division of a row by its normalizer.
#pragma once

#include "products.hpp"
#include "schedule.hpp"
#include "transpose.hpp"

LINATTN_BEGIN

// How many of the rows first .. first + size exist when `total` do.
LINATTN_INLINE int rows_at(std::int64_t first, std::int64_t total, int size) {
    return static_cast<int>(first >= total ? 0 : total - first < size ? total - first : size);
}

// out (kChunk, kChunk) = a b, with zeros above the diagonal.
template <class E, class T = SumOf<E>>
LINATTN_LOOP void scores(const E* a, std::int64_t a_width, const E* b, std::int64_t depth, T* out) {
    for (int row = 0; row < kChunk; row += kTileRows) {
        for (int column = 0; column < kChunk; column += W<T>) {
            Vec<T> sums[kTileRows][1] = {};
            if (column < row + kTileRows) {
                add_product<E, kTileRows, 1>(sums, a + row * a_width, a_width, 1, b + column, kChunk, depth);
            }
            const Vec<T> lanes = lane_numbers<T>() + T(column - row);
#pragma GCC unroll 8
            for (int i = 0; i < kTileRows; ++i) {
                store<T>(out + (row + i) * kChunk + column, lanes <= T(i) ? sums[i][0] : Vec<T>{});
            }
        }
    }
}

// sums[i] = the sum of row i of (kChunk, W).
template <class T>
LINATTN_LOOP void sum_rows(const T* rows, T* sums) {
    for (int first = 0; first < kChunk; first += W<T>) {
        Vec<T> block[W<T>];
#pragma GCC unroll 16
        for (int i = 0; i < W<T>; ++i) block[i] = load<T>(rows + (first + i) * W<T>);
        store<T>(sums + first, sum_block<T>(block));
    }
}

// products[i] (W) = partial sums of the dot product of row i of (kChunk, width) with x (width); sum their lanes.
template <class T>
LINATTN_LOOP void partial_products(const T* rows, const T* x, std::int64_t width, T* products) {
    for (int i = 0; i < kChunk; ++i) {
        Vec<T> sum{};
        for (std::int64_t d = 0; d < width; d += W<T>) sum += load<T>(rows + i * width + d) * load<T>(x + d);
        store<T>(products + i * W<T>, sum);
    }
}

// partial[i] (W) += row i of (kChunk, kChunk), summed to W lanes; `sum_rows` then gives the sum of all.
template <class T>
LINATTN_LOOP void add_partial_sums(const T* rows, T* partial) {
    for (int i = 0; i < kChunk; ++i) {
        Vec<T> sum = load<T>(partial + i * W<T>);
        for (int column = 0; column < kChunk; column += W<T>) sum += load<T>(rows + i * kChunk + column);
        store<T>(partial + i * W<T>, sum);
    }
}

// Lane i of the result is the dot product of row i of a and row i of b, both (W, width).
template <class T>
LINATTN_INLINE Vec<T> row_products(const T* a, const T* b, std::int64_t width) {
    Vec<T> products[W<T>] = {};
    for (std::int64_t d = 0; d < width; d += W<T>) {
#pragma GCC unroll 16
        for (int i = 0; i < W<T>; ++i) products[i] += load<T>(a + i * width + d) * load<T>(b + i * width + d);
    }
    return sum_block<T>(products);
}

// sums[i] += the dot product of row i of a and row i of b, both (kChunk, width).
template <class T>
LINATTN_LOOP void add_row_products(const T* a, const T* b, std::int64_t width, T* sums) {
    for (int first = 0; first < kChunk; first += W<T>) {
        const std::int64_t at = first * width;
        store<T>(sums + first, load<T>(sums + first) + row_products<T>(a + at, b + at, width));
    }
}

// The dot product of x and y, for `count` numbers, a multiple of W. Each lane adds 16 products in T, the sums in double.
template <class T>
LINATTN_LOOP double dot_product(const T* x, const T* y, std::int64_t count) {
    double totals[W<T>] = {}, total = 0;
    for (std::int64_t i = 0; i < count;) {
        const std::int64_t end = count - i < 16 * W<T> ? count : i + 16 * W<T>;
        Vec<T> sums[4] = {};
        for (; i + 4 * W<T> <= end; i += 4 * W<T>) {
#pragma GCC unroll 4
            for (int c = 0; c < 4; ++c) sums[c] += load<T>(x + i + c * W<T>) * load<T>(y + i + c * W<T>);
        }
        for (; i < end; i += W<T>) sums[0] += load<T>(x + i) * load<T>(y + i);
        const Vec<T> all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        for (int lane = 0; lane < W<T>; ++lane) totals[lane] += static_cast<double>(all[lane]);
    }
    for (const double lane : totals) total += lane;
    return total;
}

// to += x y, for `count` numbers, a multiple of W.
template <class T>
LINATTN_LOOP void add_products(const T* x, const T* y, std::int64_t count, T* to) {
    for (std::int64_t i = 0; i < count; i += W<T>) store<T>(to + i, load<T>(to + i) + load<T>(x + i) * load<T>(y + i));
}

// Row i of `count` rows of `to` = factors[i] times that of `from`, which may be the same memory.
template <class T>
LINATTN_LOOP void scale_rows(const T* factors, int count, std::int64_t width, ContiguousRows<T> from, T* to) {
    for (int i = 0; i < count; ++i, from.data += from.step, to += width) {
        for (std::int64_t d = 0; d < width; d += W<T>) store<T>(to + d, load<T>(from.data + d) * factors[i]);
    }
}

// Every one of `count` rows += x.
template <class T>
LINATTN_LOOP void add_to_rows(const T* x, int count, std::int64_t width, T* rows) {
    for (int i = 0; i < count; ++i, rows += width) {
        for (std::int64_t d = 0; d < width; d += W<T>) store<T>(rows + d, load<T>(rows + d) + load<T>(x + d));
    }
}

// Row i of `count` rows += factors[i] x.
template <class T>
LINATTN_LOOP void add_outer(const T* factors, const T* x, int count, std::int64_t width, T* rows) {
    for (int i = 0; i < count; ++i, rows += width) {
        for (std::int64_t d = 0; d < width; d += W<T>) {
            store<T>(rows + d, load<T>(rows + d) + factors[i] * load<T>(x + d));
        }
    }
}

// 1 / divisor, by which the caller multiplies the row. If it overflows or underflows, divides the row and returns 1.
template <class T>
static inline T reciprocal_for(T divisor, T* row, std::int64_t width) {
    const T inverse = T(1) / divisor;
    if (inverse - inverse == T(0) && inverse != T(0)) return inverse;
    for (std::int64_t i = 0; i < width; i += W<T>) store<T>(row + i, load<T>(row + i) / divisor);
    return T(1);
}

// inverses[i] = 1 / divisors[i]; returns whether none overflows or underflows.
template <class T>
static inline bool invert(const T* divisors, int count, T* inverses) {
    Vec<T> faults{};  // not 0 in the lane of an inverse that overflows or underflows
    int i = 0;
    for (; i + W<T> <= count; i += W<T>) {
        const Vec<T> inverse = T(1) / load<T>(divisors + i);
        store<T>(inverses + i, inverse);
        faults += (inverse - inverse == T(0)) & (inverse != T(0)) ? Vec<T>{} : broadcast(T(1));
    }
    bool normal = sum<T>(faults) == T(0);
    for (; i < count; ++i) {
        inverses[i] = T(1) / divisors[i];
        normal &= inverses[i] - inverses[i] == T(0) && inverses[i] != T(0);
    }
    return normal;
}

// Rows of a contiguous tensor.
struct OutRows {
    char* data;
    std::int64_t width;
    Dtype dtype;

    void* at(std::int64_t row) const { return data + row * width * bytes_of(dtype); }
    operator Rows() const { return {data, width, 1, dtype}; }
};

// Whether rows can be computed where they belong: they are wanted, and look as they do in scratch.
template <class T>
LINATTN_INLINE bool takes_results(const OutRows& to) {
    return to.data != nullptr && is_like_scratch<T>(to, to.width);
}

// The rows of a contiguous tensor from `first` on; if `out` is null, rows that are not written.
LINATTN_INLINE OutRows out_rows(void* out, std::int64_t first, std::int64_t width, Dtype dtype) {
    char* data = static_cast<char*>(out);
    return {data == nullptr ? nullptr : data + first * width * bytes_of(dtype), width, dtype};
}

// Writes `count` rows of scratch from row `first` on, row t times factors[t] if there are any.
template <class T>
LINATTN_INLINE void write_rows(const OutRows& to, std::int64_t first, const T* rows, int count,
                               const T* factors = nullptr) {
    if (to.data != nullptr) store_rows<T>(to.at(first), to.dtype, rows, to.width, count, factors);
}

// Completes the normalizers of positions first .. first + count, which are phi(q) . z, and writes them.
template <class T>
static inline void write_normalizers(const Attention& call, std::int64_t first, int count, T* n, T* normalizer) {
    for (int i = 0; i < count; ++i) normalizer[first + i] = n[i] += static_cast<T>(call.eps);
}

// Writes the outputs of positions first .. first + count, at most kBlock, from their numerators and normalizers.
template <class T>
static inline void write_outputs(const Attention& call, const OutRows& to, std::int64_t first, int count, const T* n,
                                 T* rows) {
    const std::int64_t width = padded<T>(to.width);
    T factors[kBlock];
    for (int i = 0; i < count && call.normalize; ++i) factors[i] = reciprocal_for<T>(n[i], rows + i * width, width);
    write_rows<T>(to, first, rows, count, call.normalize ? factors : nullptr);
}

LINATTN_END
