// The feature maps that act on each number alone, and their derivatives.
#pragma once

#include "exponential.hpp"

LINATTN_BEGIN

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
