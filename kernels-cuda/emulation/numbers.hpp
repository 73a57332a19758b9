// Conversions between float32 and the 16-bit formats, bit for bit as a GPU's instructions make them.
#pragma once

namespace linattn {

using u16 = unsigned short;
using u32 = unsigned int;

inline float bits_to_float(u32 bits) {
    float x;
    __builtin_memcpy(&x, &bits, sizeof x);
    return x;
}

namespace emulation {

inline u32 float_to_bits(float x) {
    u32 bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline u32 round_bf16(float x) {
    const u32 bits = float_to_bits(x);
    return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

}  // namespace emulation

inline u32 pack_bf16(float low, float high) { return emulation::round_bf16(low) | (emulation::round_bf16(high) << 16); }

inline float half_to_float(u16 x) {
    const u32 sign = (x & 0x8000u) << 16, magnitude = x & 0x7fffu;
    if (magnitude >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (magnitude << 13));
    if (magnitude >= 0x0400u) return bits_to_float(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = static_cast<float>(magnitude) * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}

inline u16 float_to_half(float x) {
    const u32 bits = emulation::float_to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fffu;
    u32 half;
    if (magnitude >= 0x477ff000u) {  // 65,520 and more is nearer to infinity than to 65,504
        half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
        half = ((magnitude + 0xfffu + ((magnitude >> 13) & 1u)) >> 13) - (112u << 10);
    } else {  // between 1/2 and 1 float32 steps by 2^-24, as half does below 2^-14: the addition rounds
        half = emulation::float_to_bits(bits_to_float(magnitude) + 0.5f) - emulation::float_to_bits(0.5f);
    }
    return static_cast<u16>(sign | half);
}

}  // namespace linattn
