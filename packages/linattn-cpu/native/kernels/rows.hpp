// Moves rows between the caller's tensors, of any strides and dtype, and scratch, which is padded and contiguous in the
// accumulation type, so that products need no special cases at edges. Rows that look as they do in scratch can be used
// in place.
#pragma once

#include "calls.hpp"
#include "convert.hpp"
#include "feature_map.hpp"

LINATTN_BEGIN

// Dimensions in scratch are multiples of this, which is a multiple of W and of the rows of a register tile.
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

// Rows whose numbers are neighbors.
template <class T>
struct ContiguousRows {
    const T* data;
    std::int64_t step;
};

// Whether rows of `dim` numbers look as they do in scratch: neither conversion nor padding.
template <class T>
LINATTN_INLINE bool is_like_scratch(const Rows& rows, std::int64_t dim) {
    return rows.column == 1 && dim == padded<T>(dim) && (sizeof(T) == 8 || rows.dtype == Dtype::float32);
}
// Such rows, from `first` on.
template <class T>
LINATTN_INLINE ContiguousRows<T> in_place(const Rows& rows, std::int64_t first) {
    return {reinterpret_cast<const T*>(rows.at(first)), rows.row};
}

template <class T>
LINATTN_INLINE Vec<T> first_lanes(Vec<T> v, std::int64_t count) {
    for (int i = 0; i < W<T>; ++i) v[i] = i < count ? v[i] : T(0);
    return v;
}

// The numbers of a row from d on, one by one.
template <class T, class X, int Map>
LINATTN_LOOP void load_lanes(const X* from, std::int64_t stride, std::int64_t d, std::int64_t dim, T* to) {
    for (; d < dim; d += W<T>) {
        const std::int64_t count = dim - d < W<T> ? dim - d : W<T>;
        X lanes[W<T>] = {};
        for (std::int64_t i = 0; i < count; ++i) lanes[i] = from[(d + i) * stride];
        // phi(0) need not be 0.
        store<T>(to + d, first_lanes<T>(apply_map<T>(Map, Convert<T, X>::load_from(lanes)), count));
    }
}

template <class T, class X, int Map>
LINATTN_INLINE void load_row(const X* from, std::int64_t stride, std::int64_t dim, T* to) {
    std::int64_t d = 0;
    if (stride == 1) {
        for (; d + W<T> <= dim; d += W<T>) store<T>(to + d, apply_map<T>(Map, Convert<T, X>::load_from(from + d)));
    }
    if (d < dim) load_lanes<T, X, Map>(from, stride, d, dim, to);
    for (d = round_up(dim, W<T>); d < padded<T>(dim); d += W<T>) store<T>(to + d, Vec<T>{});
}

// Prefetches memory that is needed soon; addresses past the end of a tensor do no harm.
LINATTN_INLINE void prefetch(const void* from, std::int64_t bytes) {
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(from) + b, 0, 2);
}
LINATTN_INLINE void prefetch_to_write(void* to, std::int64_t bytes) {
    for (std::int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<char*>(to) + b, 1, 2);
}

// Copies C vectors of each of `count` rows to scratch, mapped; the constants of the map stay in registers. Rows are `step`
// numbers apart in the tensor and `width` in scratch. Prefetches the vectors `ahead` numbers later, none if 0.
template <class T, class X, int Map, int C>
LINATTN_LOOP void load_columns(const X* from, std::int64_t step, int count, std::int64_t ahead, std::int64_t width,
                               T* to) {
    for (int t = 0; t < count; ++t, from += step, to += width) {
        if (ahead != 0) prefetch(from + ahead, C * W<T> * sizeof(X));
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) {
            store<T>(to + c * W<T>, apply_map<T>(Map, Convert<T, X>::load_from(from + c * W<T>)));
        }
    }
}

template <class T, class X, int Map>
LINATTN_LOOP void load_mapped(const Rows& from, std::int64_t first, int count, std::int64_t dim, int ahead, T* to) {
    const std::int64_t step = from.row, stride = from.column, width = padded<T>(dim);
    const X* row = reinterpret_cast<const X*>(from.at(first));
    if (stride == 1 && dim == width) {
        return by_vectors<T, 4>(width, [&](auto vectors, std::int64_t d) {
            constexpr int C = decltype(vectors)::value;
            load_columns<T, X, Map, C>(row + d, step, count, ahead * step, width, to + d);
        });
    }
    for (int t = 0; t < count; ++t, row += step, to += width) {
        if (stride == 1 && ahead != 0) prefetch(row + ahead * step, dim * sizeof(X));
        load_row<T, X, Map>(row, stride, dim, to);
    }
}

template <class T, class X>
static inline void load_rows_as(const Rows& from, std::int64_t first, int count, std::int64_t dim, FeatureMap map,
                                int ahead, T* to) {
    switch (map) {
        case FeatureMap::identity: return load_mapped<T, X, 0>(from, first, count, dim, ahead, to);
        case FeatureMap::relu: return load_mapped<T, X, 1>(from, first, count, dim, ahead, to);
        case FeatureMap::elu: return load_mapped<T, X, 2>(from, first, count, dim, ahead, to);
    }
}

// Writes rows first .. first + count of `from`, mapped, to `to`, and zeros up to `total` rows. Prefetches the rows
// `ahead` rows later (earlier if negative), none if 0.
template <class T>
static inline void load_rows(const Rows& from, std::int64_t first, int count, int total, int ahead, std::int64_t dim,
                             FeatureMap map, T* to) {
    if constexpr (sizeof(T) == 8) {
        load_rows_as<T, double>(from, first, count, dim, map, ahead, to);
    } else if (from.dtype == Dtype::float32) {
        load_rows_as<T, float>(from, first, count, dim, map, ahead, to);
    } else if (from.dtype == Dtype::bfloat16) {
        load_rows_as<T, bf16>(from, first, count, dim, map, ahead, to);
    } else {
        load_rows_as<T, f16>(from, first, count, dim, map, ahead, to);
    }
    const std::int64_t width = padded<T>(dim);
    if (count < total) std::memset(to + count * width, 0, sizeof(T) * width * (total - count));
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

template <class T, class X>
LINATTN_LOOP void store_rows_as(X* to, const T* from, std::int64_t dim, int count, const T* factors) {
    const std::int64_t width = padded<T>(dim);
    for (int t = 0; t < count; ++t, to += dim, from += width) {
        store_lanes<T>(to, from, dim, factors == nullptr ? T(1) : factors[t]);
    }
}

// Writes `count` rows of scratch, row t times factors[t] if there are any, to contiguous rows of the dtype.
template <class T>
static inline void store_rows(void* to, Dtype dtype, const T* from, std::int64_t dim, int count,
                              const T* factors = nullptr) {
    if constexpr (sizeof(T) == 8) {
        store_rows_as<T>(static_cast<double*>(to), from, dim, count, factors);
    } else if (dtype == Dtype::float32) {
        store_rows_as<T>(static_cast<float*>(to), from, dim, count, factors);
    } else if (dtype == Dtype::bfloat16) {
        store_rows_as<T>(static_cast<bf16*>(to), from, dim, count, factors);
    } else {
        store_rows_as<T>(static_cast<f16*>(to), from, dim, count, factors);
    }
}

// The same for one row.
template <class T>
static inline void store_row(void* to, Dtype dtype, const T* from, std::int64_t dim, T factor = T(1)) {
    store_rows<T>(to, dtype, from, dim, 1, &factor);
}

LINATTN_END
