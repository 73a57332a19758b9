// Numbers: how dtypes lie in memory, and how float32 is cut into bfloat16 parts for the tensor cores.
#pragma once

#include "linattn/calls.h"
#include "linattn/device/platform.cuh"

namespace linattn {

struct alignas(16) Quad {
    u32 words[4];
};

LINATTN_DEVICE constexpr int bytes_of(Dtype dtype) { return dtype == Dtype::float32 ? 4 : 2; }

// The two bfloat16 of a word, as float32.
LINATTN_DEVICE float low_bf16(u32 pair) { return bits_to_float(pair << 16); }
LINATTN_DEVICE float high_bf16(u32 pair) { return bits_to_float(pair & 0xffff0000u); }

LINATTN_DEVICE float low_half(u32 pair) { return half_to_float(static_cast<u16>(pair & 0xffffu)); }
LINATTN_DEVICE float high_half(u32 pair) { return half_to_float(static_cast<u16>(pair >> 16)); }

LINATTN_DEVICE u32 pack_half(float low, float high) {
    return float_to_half(low) | (static_cast<u32>(float_to_half(high)) << 16);
}

LINATTN_DEVICE float read_number(const void* numbers, Int index, Dtype dtype) {
    if (dtype == Dtype::float32) return static_cast<const float*>(numbers)[index];
    const u16 bits = static_cast<const u16*>(numbers)[index];
    return dtype == Dtype::bfloat16 ? low_bf16(bits) : half_to_float(bits);
}

LINATTN_DEVICE void write_number(void* numbers, Int index, Dtype dtype, float x) {
    if (dtype == Dtype::float32) {
        static_cast<float*>(numbers)[index] = x;
    } else {
        static_cast<u16*>(numbers)[index] =
            dtype == Dtype::bfloat16 ? static_cast<u16>(pack_bf16(x, 0.0f) & 0xffffu) : float_to_half(x);
    }
}

// Eight neighbors at once; the address is aligned to 16 bytes.
LINATTN_DEVICE void read_eight(float (&x)[8], const void* numbers, Dtype dtype) {
    const Quad* quads = static_cast<const Quad*>(numbers);
    const Quad first = quads[0];
    if (dtype == Dtype::float32) {
        const Quad second = quads[1];
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) {
            x[i] = bits_to_float(first.words[i]);
            x[4 + i] = bits_to_float(second.words[i]);
        }
        return;
    }
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
        const u32 pair = first.words[i];
        x[2 * i] = dtype == Dtype::bfloat16 ? low_bf16(pair) : low_half(pair);
        x[2 * i + 1] = dtype == Dtype::bfloat16 ? high_bf16(pair) : high_half(pair);
    }
}

LINATTN_DEVICE void write_eight(void* numbers, Dtype dtype, const float (&x)[8]) {
    if (dtype == Dtype::float32) {
        LINATTN_UNROLL
        for (int half = 0; half < 2; ++half) {
            Quad quad;
            LINATTN_UNROLL
            for (int i = 0; i < 4; ++i) quad.words[i] = float_to_bits(x[4 * half + i]);
            static_cast<Quad*>(numbers)[half] = quad;
        }
        return;
    }
    Quad quad;
    LINATTN_UNROLL
    for (int i = 0; i < 4; ++i) {
        quad.words[i] =
            dtype == Dtype::bfloat16 ? pack_bf16(x[2 * i], x[2 * i + 1]) : pack_half(x[2 * i], x[2 * i + 1]);
    }
    *static_cast<Quad*>(numbers) = quad;
}

// x as a sum of `parts` bfloat16 numbers, the largest first, two numbers at a time: 8, 16 or 24 bits of each.
template <int parts>
LINATTN_DEVICE void split(u32 (&pairs)[parts], float low, float high) {
    LINATTN_UNROLL
    for (int part = 0; part < parts; ++part) {
        pairs[part] = pack_bf16(low, high);
        low -= low_bf16(pairs[part]);
        high -= high_bf16(pairs[part]);
    }
}

// How many parts the numbers of a call are kept in: the inputs' own bits, and for float32 what was asked for.
constexpr int parts_of(Dtype query_dtype, Dtype value_dtype, Precision precision) {
    if (query_dtype == Dtype::bfloat16 && value_dtype == Dtype::bfloat16) return 1;
    const bool full = query_dtype == Dtype::float32 || value_dtype == Dtype::float32;
    return full && precision == Precision::highest ? 3 : 2;
}

}  // namespace linattn
