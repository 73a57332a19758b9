// exp of numbers up to 0. In float32 the error is at most 2 units in the last place, and subnormal results are 0. Callers
// do not use the result for x > 0 or NaN.
#pragma once

#include "simd.hpp"

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

LINATTN_BEGIN

// Below, exp(x) is 0 in float32. The first subnormal result is at -87.337.
inline constexpr float kLowestExponent = -87.33f;

#if defined(__AVX512F__)

// 2^(i/32), rounded.
alignas(64) inline constexpr float kPowers[2 * W<float>] = {
    0x1p0f,        0x1.059b0ep0f, 0x1.0b5586p0f, 0x1.11301ep0f, 0x1.172b84p0f, 0x1.1d4874p0f, 0x1.2387a6p0f,
    0x1.29e9ep0f,  0x1.306fep0f,  0x1.371a74p0f, 0x1.3dea64p0f, 0x1.44e086p0f, 0x1.4bfdaep0f, 0x1.5342b6p0f,
    0x1.5ab07ep0f, 0x1.6247ecp0f, 0x1.6a09e6p0f, 0x1.71f75ep0f, 0x1.7a1148p0f, 0x1.82589ap0f, 0x1.8ace54p0f,
    0x1.93737cp0f, 0x1.9c4918p0f, 0x1.a5503cp0f, 0x1.ae89fap0f, 0x1.b7f77p0f,  0x1.c199bep0f, 0x1.cb720ep0f,
    0x1.d5818ep0f, 0x1.dfc974p0f, 0x1.ea4afap0f, 0x1.f50766p0f};

// The bits of power i = index mod 32, less i << 18. The caller adds index << 18, so only the multiple of 32 in the index
// reaches the exponent. One instruction looks all lanes up in two registers.
LINATTN_INLINE Int32s look_up_powers(Int32s index) {
    const Int32s number = lane_numbers<std::int32_t>();
    const Int32s low = bits<Int32s>(load(kPowers)) - (number << 18);
    const Int32s high = bits<Int32s>(load(kPowers + W<float>)) - ((number + W<float>) << 18);
    return (Int32s)_mm512_permutex2var_epi32((__m512i)low, (__m512i)index, (__m512i)high);
}

// exp(x) = 2^(n/32) exp(r) with |r| <= ln 2 / 64, so that a polynomial of degree 2 is enough. It takes two multiply-adds
// fewer than without the table.
LINATTN_INLINE Vec<float> exp_of_negative(Vec<float> x) {
    // Adding 1.5 * 2^23 rounds to an integer. ln 2 / 32 is split in two parts, the second of which is negative.
    constexpr float round = 0x1.8p23f;
    const Vec<float> shifted = x * 0x1.715476p5f + round;
    const Vec<float> n = shifted - round;
    const Vec<float> r = (x - n * 0x1.62e43p-6f) + n * 0x1.05c61p-34f;
    // exp(r) - 1; the coefficient of r is the one with the smallest error.
    const Vec<float> p = (r * 0.5f + 0x1.0000ep0f) * r;
    // 2^(n/32): the last 5 bits of n choose the power, the bits before them change its exponent.
    const Int32s index = bits<Int32s>(shifted);
    // Unsigned: far below the lowest exponent the sum wraps around, and is not used.
    const Vec<float> power = bits<Vec<float>>(bits<UInt32s>(look_up_powers(index)) + (bits<UInt32s>(index) << 18));
    return x < kLowestExponent ? Vec<float>{} : p * power + power;
}

#else

LINATTN_INLINE Vec<float> exp_of_negative(Vec<float> x) {
    // exp(x) = 2^n exp(r) with |r| <= ln 2 / 2; adding 1.5 * 2^23 rounds to an integer. ln 2 is split in two parts: the
    // first has so few digits that its product with n is exact.
    constexpr float round = 0x1.8p23f;
    const Vec<float> shifted = x * 0x1.715476p0f + round;
    const Vec<float> n = shifted - round;
    const Vec<float> r = (x - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    // The polynomial with p(0) = 1 that has the smallest relative error.
    Vec<float> p = r * 0x1.0fa77cp-7f + 0x1.573b4cp-5f;
    p = p * r + 0x1.555a7p-3f;
    p = p * r + 0x1.fffdc2p-2f;
    p = p * r + 0x1.fffff6p-1f;
    p = p * r + 1.0f;
    const Vec<float> result = bits<Vec<float>>(bits<UInt32s>(p) + (bits<UInt32s>(shifted) << 23));
    return x < kLowestExponent ? Vec<float>{} : result;
}

#endif

LINATTN_INLINE Vec<double> exp_of_negative(Vec<double> x) {
    for (int i = 0; i < W<double>; ++i) x[i] = __builtin_exp(x[i]);
    return x;
}

LINATTN_END
