// The choice of an index from logits and a random number: of all, or of those that pass top_k, top_p and min_p, as
// linattn_core.decoder_spec.Draw defines them.
//
// Each filter passes the logits that are larger than some number, so all three together do. That number is found by
// halving an interval, without sorting.
#pragma once

#include "decoder.hpp"
#include "kernels/decoder/packing.hpp"
#include "kernels/feature_map.hpp"

LINATTN_BEGIN
namespace decoding {

// The filters of a row, 0 for none, and the temperature at which they see probabilities.
struct Filters {
    float temperature;
    std::int64_t top_k;
    double top_p, min_p;

    bool any() const { return top_k > 0 || top_p > 0 || min_p > 0; }
};

// One row of logits, padded with -inf to whole panels.
struct LogitRow {
    const float* logits;
    const float* weights;  // exp((logit - largest) / temperature), or null without top_p
    std::int64_t width;
    float largest;
};

// The tokens whose logits are larger than some number: how many they are, and the sum of their weights.
struct Larger {
    std::int64_t count;
    float weight;
};

// What top_k and top_p leave: a logit passes if fewer than `count` tokens are larger, and their weights sum to less than
// `weight`.
struct Limits {
    std::int64_t count;
    float weight;

    bool pass(const Larger& larger) const { return larger.count < count && larger.weight < weight; }
};

// In two vectors at a time, because one addition would wait for the one before.
template <bool IsWeighted>
LINATTN_LOOP Larger sum_larger(const LogitRow& row, float logit) {
    Int32s counts[2] = {};
    Vec<float> weights[2] = {};
    for (std::int64_t i = 0; i < row.width; i += kPanel) {
#pragma GCC unroll 2
        for (int n = 0; n < 2; ++n) {
            const Int32s is_larger = load(row.logits + i + n * W<float>) > logit;  // -1 where it is, else 0
            counts[n] -= is_larger;
            if constexpr (IsWeighted) {
                const Vec<float> weight = load(row.weights + i + n * W<float>);
                weights[n] += is_larger ? weight : Vec<float>{};
            }
        }
    }
    return {sum<std::int32_t>(counts[0] + counts[1]), sum<float>(weights[0] + weights[1])};
}

static Larger larger_than(const LogitRow& row, float logit) {
    return row.weights == nullptr ? sum_larger<false>(row, logit) : sum_larger<true>(row, logit);
}

// Integers in the order of float32 numbers, and back: the bits of positive numbers are in order, those of negative ones
// in reverse order.
LINATTN_INLINE std::int32_t in_order(std::int32_t bits) { return bits < 0 ? bits ^ 0x7fffffff : bits; }
LINATTN_INLINE std::int32_t key_of(float x) { return in_order(bits<std::int32_t>(x)); }
LINATTN_INLINE float number_at(std::int32_t key) { return bits<float>(in_order(key)); }

// A number such that a logit larger than `low` passes the limits if it is larger than this number, and fails if not. The
// largest logit always passes.
//
// Halves the interval from the largest number that is known to fail to the smallest that is known to pass, until it
// contains one token; that one passes. There are at most 32 halvings.
static float last_excluded(const LogitRow& row, const Limits& limits, float low) {
    std::int64_t fails = key_of(low), passes = key_of(row.largest);
    Larger above_failing = larger_than(row, low), above_passing{0, 0};
    if (limits.pass(above_failing)) return low;
    while (passes - fails > 1 && above_failing.count - above_passing.count > 1) {
        const auto middle = static_cast<std::int32_t>(fails + (passes - fails) / 2);
        const Larger larger = larger_than(row, number_at(middle));
        if (limits.pass(larger)) {
            passes = middle, above_passing = larger;
        } else {
            fails = middle, above_failing = larger;
        }
    }
    return number_at(static_cast<std::int32_t>(fails));
}

static float largest_of(const float* logits, std::int64_t width) {
    Vec<float> largest = broadcast(-__builtin_inff());
    for (std::int64_t i = 0; i < width; i += W<float>) {
        const Vec<float> x = load(logits + i);
        largest = x > largest ? x : largest;
    }
    float result = largest[0];
    for (int i = 1; i < W<float>; ++i) result = largest[i] > result ? largest[i] : result;
    return result;
}

// Overwrites the padding of the logits and, with top_p, `weights`, which has room for a padded row.
static LogitRow padded_row(const Filters& filters, float* logits, std::int64_t count, float* weights) {
    const std::int64_t width = round_up(count, kPanel);
    for (std::int64_t i = count; i < width; ++i) logits[i] = -__builtin_inff();
    const float largest = largest_of(logits, width);
    if (filters.top_p == 0) return {logits, nullptr, width, largest};
    for (std::int64_t i = 0; i < width; i += W<float>) {
        store(weights + i, exp_of_negative((load(logits + i) - largest) / filters.temperature));
    }
    return {logits, weights, width, largest};
}

// The largest logit that min_p leaves out.
static float excluded_by_min_p(const Filters& filters, float largest) {
    const float infinity = __builtin_inff();
    if (filters.min_p == 0) return -infinity;
    const double least = largest + filters.temperature * __builtin_log(filters.min_p);
    return __builtin_nextafterf(static_cast<float>(least), -infinity);
}

static Limits limits_of(const Filters& filters, const LogitRow& row) {
    Limits limits{filters.top_k > 0 ? filters.top_k : row.width, __builtin_inff()};
    if (filters.top_p > 0) {
        // Probabilities are those of the tokens that top_k leaves.
        const float excluded = last_excluded(row, limits, -__builtin_inff());
        limits.weight = static_cast<float>(filters.top_p * larger_than(row, excluded).weight);
    }
    return limits;
}

// The largest logit that the filters leave out; -inf for none.
static float excluded_by(const Filters& filters, float* logits, std::int64_t count, float* weights) {
    if (!filters.any()) return -__builtin_inff();
    const LogitRow row = padded_row(filters, logits, count, weights);
    return last_excluded(row, limits_of(filters, row), excluded_by_min_p(filters, row.largest));
}

// The first index up to which softmax(logits / temperature), of the logits above `excluded`, sums to more than
// `quantile`. `sums` has room for `count` numbers. In double, so that only the rounding of the logits counts.
static std::int64_t invert(const float* logits, std::int64_t count, double quantile, double temperature, float excluded,
                           double* sums) {
    const auto finite = [](float x) { return x < __FLT_MAX__ ? x : __FLT_MAX__; };  // inf - inf would be NaN
    float largest = -__builtin_inff();
    for (std::int64_t i = 0; i < count; ++i) largest = logits[i] > largest ? logits[i] : largest;
    const double highest = finite(largest);
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (logits[i] > excluded) sum += __builtin_exp((finite(logits[i]) - highest) / temperature);
        sums[i] = sum;
    }
    for (std::int64_t i = 0; i < count; ++i) {
        if (sums[i] > quantile * sum) return i;
    }
    return count - 1;
}

}  // namespace decoding
LINATTN_END
