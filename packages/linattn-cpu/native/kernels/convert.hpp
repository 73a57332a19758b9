// bfloat16 and float16 in memory, float32 in registers.
#pragma once

#include "simd.hpp"

LINATTN_BEGIN

// The 16-bit formats in memory.
struct bf16 {
    std::uint16_t bits;
};
struct f16 {
    std::uint16_t bits;
};

LINATTN_INLINE Vec<float> widen_bf16(UInt32s x) { return bits<Vec<float>>(x << 16); }

// Rounds to nearest, ties to even; NaN stays NaN.
LINATTN_INLINE UInt32s narrow_bf16(Vec<float> x) {
    const UInt32s b = bits<UInt32s>(x);
    const UInt32s rounded = (b + 0x7fffu + ((b >> 16) & 1u)) >> 16;
    return x != x ? UInt32s{} + 0x7fc0u : rounded;
}

LINATTN_INLINE Vec<float> widen_f16(UInt32s x) {
    const UInt32s magnitude = x & 0x7fffu, sign = (x & 0x8000u) << 16;
    // The exponent bias of float16 is 15, that of float32 127: multiplying by 2^112 corrects it, also for subnormals.
    UInt32s b = bits<UInt32s>(bits<Vec<float>>(magnitude << 13) * 0x1p112f);
    b = magnitude >= 0x7c00u ? b | 0x7f800000u : b;
    return bits<Vec<float>>(b | sign);
}

LINATTN_INLINE UInt32s narrow_f16(Vec<float> x) {
    const UInt32s b = bits<UInt32s>(x), magnitude = b & 0x7fffffffu, sign = (b >> 16) & 0x8000u;
    const UInt32s normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // The last place of 0.5 in float32 is float16's smallest subnormal, so adding 0.5 rounds to a multiple of it.
    const UInt32s small = bits<UInt32s>(bits<Vec<float>>(magnitude) + 0.5f) - 0x3f000000u;
    UInt32s result = magnitude < 0x38800000u ? small : normal;
    result = magnitude >= 0x477ff000u ? UInt32s{} + 0x7c00u : result;
    result = magnitude > 0x7f800000u ? UInt32s{} + 0x7e00u : result;
    return result | sign;
}

// Numbers of storage type X become vectors of the accumulation type T and back.
template <class T, class X>
struct Convert {
    LINATTN_INLINE Vec<T> load_from(const X* from) { return load<T>(from); }
    LINATTN_INLINE void store_to(X* to, Vec<T> v) { store<T>(to, v); }
};
template <>
struct Convert<float, bf16> {
    LINATTN_INLINE Vec<float> load_from(const bf16* from) {
        return widen_bf16(__builtin_convertvector(load_as<UInt16s>(from), UInt32s));
    }
    LINATTN_INLINE void store_to(bf16* to, Vec<float> v) {
        store_as(to, __builtin_convertvector(narrow_bf16(v), UInt16s));
    }
};
template <>
struct Convert<float, f16> {
    LINATTN_INLINE Vec<float> load_from(const f16* from) {
        return widen_f16(__builtin_convertvector(load_as<UInt16s>(from), UInt32s));
    }
    LINATTN_INLINE void store_to(f16* to, Vec<float> v) {
        store_as(to, __builtin_convertvector(narrow_f16(v), UInt16s));
    }
};

LINATTN_END
