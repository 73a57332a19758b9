// Moving rows between the caller's tensors and scratch: any strides and dtype there, padded and
// contiguous in the accumulation type here, so that products need no special case at an edge.
#pragma once

#include "calls.hpp"
#include "convert.hpp"
#include "feature_map.hpp"

LINATTN_BEGIN

// Dimensions in scratch are multiples of this: of a vector, and of the rows of a register tile.
template <class T>
inline constexpr int kPad = W<T> > 8 ? W<T> : 8;
template <class T>
LINATTN_INLINE std::int64_t padded(std::int64_t n) {
    return round_up(n, kPad<T>);
}

// One (length, dim) slice of a tensor.
struct Rows {
    const char* data;
    std::int64_t row, column;  // strides in elements
    Dtype dtype;

    const char* at(std::int64_t index) const { return data + index * row * bytes_of(dtype); }
};

LINATTN_INLINE Rows slice(const Tensor4& x, std::int64_t batch, std::int64_t head, std::int64_t first, Dtype dtype) {
    const std::int64_t offset = batch * x.batch + head * x.head + first * x.position;
    return {static_cast<const char*>(x.data) + offset * bytes_of(dtype), x.position, x.dim, dtype};
}

// (length, dim) of a contiguous tensor, from its row `first` on.
LINATTN_INLINE Rows contiguous_rows(const void* data, std::int64_t first, std::int64_t dim, Dtype dtype) {
    return {static_cast<const char*>(data) + first * dim * bytes_of(dtype), dim, 1, dtype};
}

template <class T>
LINATTN_INLINE Vec<T> first_lanes(Vec<T> v, std::int64_t count) {
    for (int i = 0; i < W<T>; ++i) v[i] = i < count ? v[i] : T(0);
    return v;
}

template <class T, class X>
static inline void load_row(const X* from, std::int64_t stride, std::int64_t dim, int map, T* to) {
    std::int64_t d = 0;
    if (stride == 1) {
        for (; d + W<T> <= dim; d += W<T>) {
            store<T>(to + d, apply_map<T>(map, Convert<T, X>::load_from(from + d)));
        }
    }
    for (; d < dim; d += W<T>) {
        const std::int64_t count = dim - d < W<T> ? dim - d : W<T>;
        X lanes[W<T>] = {};
        for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[(d + i) * stride];
        // phi(0) need not be 0.
        store<T>(to + d, first_lanes<T>(apply_map<T>(map, Convert<T, X>::load_from(lanes)), count));
    }
    for (d = round_up(dim, W<T>); d < padded<T>(dim); d += W<T>) store<T>(to + d, Vec<T>{});
}

// Asks for memory that is needed soon; an address past an end does no harm.
LINATTN_INLINE void prefetch(const void* from, std::int64_t bytes) {
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b, 0, 2);
}
LINATTN_INLINE void prefetch_to_write(void* to, std::int64_t bytes) {
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<char*>(to) + b, 1, 2);
}

template <class T, class X>
LINATTN_LOOP void load_rows_as(const Rows& from, std::int64_t first, int count, int total, std::int64_t dim, int map,
                               int ahead, T* to) {
    const std::int64_t width = padded<T>(dim);
    for (int t = 0; t < count; ++t) {
        const X* row = reinterpret_cast<const X*>(from.at(first + t));
        if (from.column == 1) prefetch(from.at(first + t + ahead), dim * sizeof(X));
        if (map == 2) {
            load_row<T>(row, from.column, dim, 2, to + t * width);
        } else if (map == 1) {
            load_row<T>(row, from.column, dim, 1, to + t * width);
        } else {
            load_row<T>(row, from.column, dim, 0, to + t * width);
        }
    }
    if (count < total) std::memset(to + count * width, 0, sizeof(T) * width * (total - count));
}

// Writes rows first .. first + count of `from`, mapped, to `to`, and zeros up to `total` rows. The
// rows `ahead` of them (before them if negative) are prefetched.
template <class T>
static inline void load_rows(const Rows& from, std::int64_t first, int count, int total, int ahead, std::int64_t dim,
                             FeatureMap map, T* to) {
    const int m = static_cast<int>(map);
    if constexpr (sizeof(T) == 8) {
        load_rows_as<T, double>(from, first, count, total, dim, m, ahead, to);
    } else if (from.dtype == Dtype::float32) {
        load_rows_as<T, float>(from, first, count, total, dim, m, ahead, to);
    } else if (from.dtype == Dtype::bfloat16) {
        load_rows_as<T, bf16>(from, first, count, total, dim, m, ahead, to);
    } else {
        load_rows_as<T, f16>(from, first, count, total, dim, m, ahead, to);
    }
}

template <class T, class X>
static inline void store_lanes(X* to, const T* from, std::int64_t count, T factor) {
    std::int64_t d = 0;
    for (; d + W<T> <= count; d += W<T>) Convert<T, X>::store_to(to + d, load<T>(from + d) * factor);
    if (d == count) return;
    X lanes[W<T>];
    Convert<T, X>::store_to(lanes, load<T>(from + d) * factor);
    for (std::int64_t i = d; i < count; ++i) to[i] = lanes[i - d];
}

// Writes the first `count` numbers of one row, times `factor`, to a row of the dtype.
template <class T>
static inline void store_row(void* row, Dtype dtype, const T* from, std::int64_t count, T factor = T(1)) {
    if constexpr (sizeof(T) == 8) {
        store_lanes<T>(static_cast<double*>(row), from, count, factor);
    } else if (dtype == Dtype::float32) {
        store_lanes<T>(static_cast<float*>(row), from, count, factor);
    } else if (dtype == Dtype::bfloat16) {
        store_lanes<T>(static_cast<bf16*>(row), from, count, factor);
    } else {
        store_lanes<T>(static_cast<f16*>(row), from, count, factor);
    }
}

LINATTN_END
