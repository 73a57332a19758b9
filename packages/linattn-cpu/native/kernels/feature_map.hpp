// The feature maps that act on each number alone, and their derivatives.
#pragma once

#include "simd.hpp"

LINATTN_BEGIN

// exp(x) for x <= 0, with an error of at most 2 units in the last place; 0 where exp(x) is subnormal. Callers do not
// use the result for x > 0 or NaN.
LINATTN_INLINE Vec<float> exp_of_negative(Vec<float> x) {
    // exp(x) = 2^n exp(r) with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer. ln 2 is split in two parts: the
    // first has so few digits that its product with n is exact.
    constexpr float round = 0x1.8p23f, lowest = -87.33f;
    const Vec<float> shifted = x * 0x1.715476p0f + round;
    const Vec<float> n = shifted - round;
    const Vec<float> r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    // The polynomial with p(0) = 1 that has the smallest relative error.
    Vec<float> p = r * 0x1.0fa77cp-7f + 0x1.573b4cp-5f;
    p = p * r + 0x1.555a7p-3f;
    p = p * r + 0x1.fffdc2p-2f;
    p = p * r + 0x1.fffff6p-1f;
    p = p * r + 1.0f;
    const Vec<float> result = bits<Vec<float>>(bits<Int32s>(p) + (bits<Int32s>(shifted) << 23));
    return x < lowest ? Vec<float>{} : result;
}

LINATTN_INLINE Vec<double> exp_of_negative(Vec<double> x) {
    for (int i = 0; i < W<double>; ++i) x[i] = __builtin_exp(x[i]);
    return x;
}

// phi(x): max(x, 0) for relu, exp(x) below zero and x + 1 above for elu (equation 7).
template <class T>
LINATTN_INLINE Vec<T> apply_map(int map, Vec<T> x) {
    if (map == 0) return x;
    if (map == 1) return x < T(0) ? Vec<T>{} : x;      // a NaN stays
    return x <= T(0) ? exp_of_negative(x) : x + T(1);  // a NaN stays
}

// phi'(x) from phi(x).
template <class T>
LINATTN_INLINE Vec<T> map_derivative(int map, Vec<T> phi) {
    if (map == 0) return broadcast(T(1));
    if (map == 1) return phi > T(0) ? broadcast(T(1)) : phi;
    return phi > T(1) ? broadcast(T(1)) : phi;
}

LINATTN_END
