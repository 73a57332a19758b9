// Softmax over the last w keys of a head, joined to linear attention over the keys before them by one normalizer; see
// linattn_models.Linear.
#pragma once

#include "kernels/decoder/heads.hpp"

LINATTN_BEGIN
namespace decoding {

// The last w keys and values of a head: those of position p are in slot p mod w. From one key to the next are
// `key_stride` numbers.
struct Ring {
    float *keys, *values;
    std::int64_t dim, key_stride;
};

// exp of scores, divided by that of the largest: their sum, and that score.
struct Weighted {
    float total, largest;
};

LINATTN_INLINE float dot(const float* x, const float* y, std::int64_t dim) {
    Vec<float> total{};
    std::int64_t d = 0;
    for (; d + W<float> <= dim; d += W<float>) total += load(x + d) * load(y + d);
    float result = sum<float>(total);
    for (; d < dim; ++d) result += x[d] * y[d];
    return result;
}

// The weights of a query's scores in the first `count` slots. `weights` has room for whole vectors.
static Weighted weigh_slots(const Ring& ring, const float* query, std::int64_t count, float* weights) {
    const float lowest = -__builtin_inff();
    float largest = lowest;
    for (std::int64_t j = 0; j < count; ++j) {
        weights[j] = dot(query, ring.keys + j * ring.key_stride, ring.dim);
        largest = weights[j] > largest ? weights[j] : largest;
    }
    for (std::int64_t j = count; j < round_up(count, W<float>); ++j) weights[j] = lowest;
    Vec<float> total{};
    for (std::int64_t j = 0; j < count; j += W<float>) {
        const Vec<float> weight = exp_of_negative(load(weights + j) - largest);
        store(weights + j, weight);
        total += weight;
    }
    return {sum<float>(total), largest};
}

// For a vector of type T, from column m on: the sum of the values times their weights, and of `far` times its factor.
template <class T>
LINATTN_INLINE void sum_column(const Ring& ring, const float* weights, std::int64_t count, std::int64_t m, float near,
                               float factor, const float* far, float* out) {
    T totals[2] = {};  // one addition would wait for the one before
    std::int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
#pragma GCC unroll 2
        for (int n = 0; n < 2; ++n) totals[n] += weights[j + n] * load_as<T>(ring.values + (j + n) * ring.dim + m);
    }
    if (j < count) totals[0] += weights[j] * load_as<T>(ring.values + j * ring.dim + m);
    T result = (totals[0] + totals[1]) * near;
    if (factor > 0) result += load_as<T>(far + m) * factor;
    store_as(out + m, result);
}

// Attention to the first `count` slots and, with `far_weight` > -inf, the logarithm of the weight of all keys before them,
// to `far`, their mean. `out` may be `far`.
static void join_window(const Ring& ring, const float* query, std::int64_t count, float far_weight, const float* far,
                        float* weights, float* out) {
    const Weighted window = weigh_slots(ring, query, count, weights);
    const float largest = far_weight > window.largest ? far_weight : window.largest;
    float near = __builtin_expf(window.largest - largest), factor = __builtin_expf(far_weight - largest);
    const float total = near * window.total + factor;
    near /= total, factor /= total;
    std::int64_t m = 0;
    for (; m + W<float> <= ring.dim; m += W<float>) {
        sum_column<Vec<float>>(ring, weights, count, m, near, factor, far, out);
    }
    for (; m < ring.dim; ++m) sum_column<float>(ring, weights, count, m, near, factor, far, out);
}

}  // namespace decoding
LINATTN_END
