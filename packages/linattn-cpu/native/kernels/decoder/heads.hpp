// One position of linear attention for one row and head: adds the key to the state and reads it.
#pragma once

#include "kernels/feature_map.hpp"

LINATTN_BEGIN
namespace decoding {

// One head of one row: s (D, D) and z (D) are updated, `out` (D) is written.
struct HeadStep {
    const float *query, *key;  // (D), mapped
    const float* value;        // (D)
    float *s, *z, *out;
    std::int64_t dim;
};

// z += phi(k); returns phi(q)^T z.
LINATTN_INLINE float update_normalizer(const HeadStep& head) {
    Vec<float> total{};
    std::int64_t d = 0;
    for (; d + W<float> <= head.dim; d += W<float>) {
        const Vec<float> z = load(head.z + d) + load(head.key + d);
        store(head.z + d, z);
        total += load(head.query + d) * z;
    }
    float result = sum<float>(total);
    for (; d < head.dim; ++d) {
        head.z[d] += head.key[d];
        result += head.query[d] * head.z[d];
    }
    return result;
}

// For N vectors of type V, from column m on: s += phi(k) v^T and out = phi(q)^T s / divisor.
template <class V, int N>
LINATTN_INLINE void update_columns(const HeadStep& head, std::int64_t m, float divisor) {
    constexpr int kWidth = sizeof(V) / sizeof(float);
    V value[N], total[N] = {};
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) value[n] = load_as<V>(head.value + m + n * kWidth);
    float* row = head.s + m;
    for (std::int64_t d = 0; d < head.dim; ++d, row += head.dim) {
        const float q = head.query[d], k = head.key[d];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            const V s = load_as<V>(row + n * kWidth) + k * value[n];
            store_as(row + n * kWidth, s);
            total[n] += q * s;
        }
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) store_as(head.out + m + n * kWidth, total[n] / divisor);
}

// The columns from m on, in vectors of `Bytes` bytes and the rest in shorter ones.
template <int Bytes>
LINATTN_INLINE void update_from(const HeadStep& head, std::int64_t m, float divisor) {
    using V = typename VectorOf<float, Bytes>::type;
    constexpr int kWidth = Bytes / 4;
    for (; m + 4 * kWidth <= head.dim; m += 4 * kWidth) update_columns<V, 4>(head, m, divisor);
    for (; m + 2 * kWidth <= head.dim; m += 2 * kWidth) update_columns<V, 2>(head, m, divisor);
    for (; m + kWidth <= head.dim; m += kWidth) update_columns<V, 1>(head, m, divisor);
    if constexpr (Bytes > 16) {
        update_from<Bytes / 2>(head, m, divisor);
    } else {
        for (; m < head.dim; ++m) update_columns<float, 1>(head, m, divisor);
    }
}

static void step_head(const HeadStep& head, float eps) {
    update_from<kVectorBytes>(head, 0, update_normalizer(head) + eps);
}

// phi of `dim` numbers. Reads and writes whole vectors, so both memories must have room for them.
LINATTN_INLINE void map_vector(FeatureMap map, const float* from, std::int64_t dim, float* to) {
    for (std::int64_t d = 0; d < dim; d += W<float>) {
        store(to + d, apply_map<float>(static_cast<int>(map), load(from + d)));
    }
}

}  // namespace decoding
LINATTN_END
