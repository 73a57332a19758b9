// One position of linear attention for one row and head: adds the key to the state and reads it.
#pragma once

#include "kernels/feature_map.hpp"

LINATTN_BEGIN
namespace decoding {

// What happens to the state of a key/value head before a query reads it: a key is added, once all that is there has
// decayed or not, or, for the group's other queries, nothing.
enum class Visit { add, decay_and_add, read };

// One head of one row: s (F, D) and z (F) are updated, `out` (D) is written.
struct HeadStep {
    const float *query, *key;  // (F), mapped
    const float* value;        // (D)
    float *s, *z, *out;
    std::int64_t features, dim;
    float decay;
};

// Numbers of the state after the visit.
template <Visit V, class T>
LINATTN_INLINE T visited(T state, float decay, T added) {
    if constexpr (V == Visit::add) return state + added;
    if constexpr (V == Visit::decay_and_add) return state * decay + added;
    return state;
}

// z += phi(k); returns phi(q)^T z.
template <Visit V>
LINATTN_INLINE float update_normalizer(const HeadStep& head) {
    Vec<float> total{};
    std::int64_t d = 0;
    for (; d + W<float> <= head.features; d += W<float>) {
        const Vec<float> z = visited<V>(load(head.z + d), head.decay, load(head.key + d));
        if constexpr (V != Visit::read) store(head.z + d, z);
        total += load(head.query + d) * z;
    }
    float result = sum<float>(total);
    for (; d < head.features; ++d) {
        const float z = visited<V>(head.z[d], head.decay, head.key[d]);
        if constexpr (V != Visit::read) head.z[d] = z;
        result += head.query[d] * z;
    }
    return result;
}

// For N vectors of type T, from column m on: s += phi(k) v^T and out = phi(q)^T s / divisor.
template <Visit V, class T, int N>
LINATTN_INLINE void update_columns(const HeadStep& head, std::int64_t m, float divisor) {
    constexpr int kWidth = sizeof(T) / sizeof(float);
    T value[N], total[N] = {};
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) value[n] = load_as<T>(head.value + m + n * kWidth);
    float* row = head.s + m;
    for (std::int64_t d = 0; d < head.features; ++d, row += head.dim) {
        const float q = head.query[d], k = head.key[d];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            const T s = visited<V>(load_as<T>(row + n * kWidth), head.decay, T(k * value[n]));
            if constexpr (V != Visit::read) store_as(row + n * kWidth, s);
            total[n] += q * s;
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store_as(head.out + m + n * kWidth, total[n] / divisor);
}

// The columns from m on, in vectors of `Bytes` bytes and the rest in shorter ones.
template <Visit V, int Bytes>
LINATTN_INLINE void update_from(const HeadStep& head, std::int64_t m, float divisor) {
    using T = typename VectorOf<float, Bytes>::type;
    constexpr int kWidth = Bytes / 4;
    for (; m + 4 * kWidth <= head.dim; m += 4 * kWidth) update_columns<V, T, 4>(head, m, divisor);
    for (; m + 2 * kWidth <= head.dim; m += 2 * kWidth) update_columns<V, T, 2>(head, m, divisor);
    for (; m + kWidth <= head.dim; m += kWidth) update_columns<V, T, 1>(head, m, divisor);
    if constexpr (Bytes > 16) {
        update_from<V, Bytes / 2>(head, m, divisor);
    } else {
        for (; m < head.dim; ++m) update_columns<V, float, 1>(head, m, divisor);
    }
}

// Returns phi(q)^T z.
template <Visit V>
static float step_head(const HeadStep& head, float eps) {
    const float normalizer = update_normalizer<V>(head);
    update_from<V, kVectorBytes>(head, 0, normalizer + eps);
    return normalizer;
}

static float step_head(Visit visit, const HeadStep& head, float eps) {
    switch (visit) {
        case Visit::add: return step_head<Visit::add>(head, eps);
        case Visit::decay_and_add: return step_head<Visit::decay_and_add>(head, eps);
        case Visit::read: return step_head<Visit::read>(head, eps);
    }
    __builtin_unreachable();
}

// Turns pair (i, i + D / 2) of a head by angle i (rotary positions). `rotation`: the D / 2 cosines, then the sines.
LINATTN_INLINE void rotate(const float* from, const float* rotation, std::int64_t dim, float* to) {
    const std::int64_t half = dim / 2;
    for (std::int64_t i = 0; i < half; ++i) {
        const float x = from[i], y = from[i + half], cosine = rotation[i], sine = rotation[i + half];
        to[i] = x * cosine - y * sine;
        to[i + half] = y * cosine + x * sine;
    }
}

// phi of `dim` numbers. Reads and writes whole vectors, so both memories must have room for them.
LINATTN_INLINE void map_vector(FeatureMap map, const float* from, std::int64_t dim, float* to) {
    for (std::int64_t d = 0; d < dim; d += W<float>) {
        store(to + d, apply_map<float>(static_cast<int>(map), load(from + d)));
    }
}

// phi of a learned map for `dim` numbers, [softmax(x W), softmax(-x W)] with W (dim, features / 2). Returns the logarithm
// of the sum of exp(x W) and exp(-x W).
static float map_learned(const float* weight, const float* from, std::int64_t dim, std::int64_t features, float* to) {
    const std::int64_t half = features / 2;
    float* const negated = to + half;
    std::memset(to, 0, half * sizeof(float));
    for (std::int64_t d = 0; d < dim; ++d, weight += half) {
        for (std::int64_t f = 0; f < half; ++f) to[f] += from[d] * weight[f];
    }
    float largest = to[0], least = to[0];
    for (std::int64_t f = 1; f < half; ++f) {
        largest = to[f] > largest ? to[f] : largest;
        least = to[f] < least ? to[f] : least;
    }
    float sum = 0, negated_sum = 0;
    for (std::int64_t f = 0; f < half; ++f) {
        negated[f] = __builtin_expf(least - to[f]), negated_sum += negated[f];
        to[f] = __builtin_expf(to[f] - largest), sum += to[f];
    }
    for (std::int64_t f = 0; f < half; ++f) to[f] /= sum, negated[f] /= negated_sum;
    const float top = largest > -least ? largest : -least;
    return top + __builtin_logf(__builtin_expf(largest - top) * sum + __builtin_expf(-least - top) * negated_sum);
}

}  // namespace decoding
LINATTN_END
