// Operations on whole rows of activations: the activation functions, LayerNorm, and conversion to the formats of
// products.
#pragma once

#include "kernels/decoder/tiles.hpp"
#include "kernels/feature_map.hpp"

LINATTN_BEGIN
namespace decoding {

// x Phi(x), with Phi the normal distribution function; the error is at most 5e-7 of the smaller tail.
LINATTN_INLINE Vec<float> gelu(Vec<float> x) {
    const Vec<float> size = x < 0.0f ? -x : x;
    // Phi(-size) = exp(-size^2 / 2) p(1 / (1 + 0.31 size)), p fitted by minimax.
    const Vec<float> t = 1.0f / (size * 0x1.3d70a4p-2f + 1.0f);
    Vec<float> p = t * 0x1.260b8cp-5f - 0x1.22797ep-3f;
    p = p * t + 0x1.3e6d5cp-3f;
    p = p * t - 0x1.f589d0p-7f;
    p = p * t + 0x1.c3ef5ap-4f;
    p = p * t + 0x1.b921fcp-4f;
    p = p * t + 0x1.fc33b4p-4f;
    p = p * t + 0x1.fa7ec4p-4f;
    const Vec<float> tail = x * (p * t * exp_of_negative(size * size * -0.5f));
    return x > 0.0f ? x - tail : tail;
}

// 1 / (1 + exp(-x)).
LINATTN_INLINE Vec<float> sigmoid(Vec<float> x) {
    const Vec<float> one = Vec<float>{} + 1.0f, tail = exp_of_negative(x < 0.0f ? x : -x);
    return (x < 0.0f ? tail : one) / (one + tail);
}

// x (1 + tanh(y)) / 2, with y = sqrt(2 / pi) (x + 0.044715 x^3); (1 + tanh(y)) / 2 = sigmoid(2 y).
LINATTN_INLINE Vec<float> gelu_tanh(Vec<float> x) { return x * sigmoid(x * (x * x * 0.0713548163f + 1.5957691216f)); }

LINATTN_INLINE Vec<float> activate(Activation activation, Vec<float> x) {
    if (activation == Activation::silu) return x * sigmoid(x);
    if (activation == Activation::gelu_tanh) return gelu_tanh(x);
    return activation == Activation::gelu ? gelu(x) : apply_map<float>(1, x);
}

// LayerNorm or RMSNorm of `count` numbers; the padding of `to`, up to whole panels, becomes 0.
static void normalize(const float* from, std::int64_t count, const NormWeights& norm, float* to) {
    Vec<float> total{}, squares{};
    // Past the end `from` holds 0.
    for (std::int64_t i = 0; i < count; i += W<float>) total += load(from + i);
    const float mean = norm.centered ? sum<float>(total) / static_cast<float>(count) : 0.0f;
    for (std::int64_t i = 0; i < count; i += W<float>) {
        const Int32s index = lane_numbers<std::int32_t>() + static_cast<std::int32_t>(i);
        const Vec<float> x = load(from + i) - mean;
        const Vec<float> d = index < static_cast<std::int32_t>(count) ? x : Vec<float>{};
        squares += d * d;
    }
    const float variance = sum<float>(squares) / static_cast<float>(count);
    const float inverse = 1.0f / __builtin_sqrtf(variance + norm.eps);
    for (std::int64_t i = 0; i < round_up(count, kPanel); i += W<float>) {
        store(to + i, (load(from + i) - mean) * inverse * load(norm.weight + i) + load(norm.bias + i));
    }
}

// Without a norm (null), a copy.
static void normalize_or_copy(const float* from, std::int64_t count, const NormWeights* norm, float* to) {
    if (norm == nullptr) {
        std::memcpy(to, from, round_up(count, kPanel) * sizeof(float));
    } else {
        normalize(from, count, *norm, to);
    }
}

// The format of activations in a product of `rows` rows with weights of a format.
//
// bfloat16 weights: a few rows are limited by reading the weights and stay in float32; from kBf16Rows rows on, a
// machine with AVX512-BF16 rounds activations to bfloat16. int8 weights: every x86-64 rounds activations to 16-bit
// integers, by at most 2^-16 of the row's largest.
#ifdef LINATTN_TILES
inline constexpr std::int64_t kBf16Rows = kAmxFewestRows;
static_assert(kBf16Rows > 1, "parts of a single row have operands of their own, without room for tiles");
#else
inline constexpr std::int64_t kBf16Rows = 16;
#endif
LINATTN_INLINE ActivationFormat activation_format(WeightFormat format, std::int64_t rows) {
#ifdef LINATTN_BF16
    if (format == WeightFormat::bfloat16 && rows >= kBf16Rows) return ActivationFormat::bf16;
#endif
#if defined(LINATTN_BYTES)
    if (format == WeightFormat::int8) return ActivationFormat::bytes;
#elif defined(LINATTN_PAIRS)
    if (format == WeightFormat::int8) return ActivationFormat::shorts;
#endif
    (void)format, (void)rows;
    return ActivationFormat::floats;
}

// The most bytes of a number in an operand.
inline constexpr std::int64_t kOperandBytes = 2;

// The rows that an operand has room for, and the bytes past its end. Tiles are read whole: rows past the last one, whose
// results are dropped, and up to 32 bytes past a plane of bytes, where the weights are 0.
#ifdef LINATTN_TILES
constexpr std::int64_t operand_rows(std::int64_t rows) { return round_up(rows, kAmxRows); }
inline constexpr std::int64_t kOperandSlack = kAmxRowBytes;
#else
constexpr std::int64_t operand_rows(std::int64_t rows) { return rows; }
inline constexpr std::int64_t kOperandSlack = 0;
#endif

// `inverse`: the factor that makes the largest of a row's numbers 32767 or -32767; `scale`: the value of the integer 1,
// NaN if one of them is NaN or infinite.
struct RowScale {
    float inverse, scale;
};
static RowScale scale_of_row(const float* from, std::int64_t count) {
    Vec<float> largest{}, poison{};
    for (std::int64_t i = 0; i < count; i += W<float>) {
        const Vec<float> x = load(from + i), size = x < 0.0f ? -x : x;
        largest = size > largest ? size : largest;
        poison += x * 0.0f;
    }
    float top = 0;
    for (int i = 0; i < W<float>; ++i) top = largest[i] > top ? largest[i] : top;
    return {top > 0 ? 32767.0f / top : 0.0f, top / 32767.0f + sum<float>(poison)};
}

// Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
LINATTN_INLINE UInt32s level_bits(const float* from, float inverse) {
    return bits<UInt32s>(load(from) * inverse + 0x1.8p23f);
}

#ifdef LINATTN_PAIRS

// Returns the scale.
static float to_shorts(const float* from, std::int64_t count, std::int16_t* to) {
    const RowScale row = scale_of_row(from, count);
    for (std::int64_t i = 0; i < count; i += W<float>) {
        store_as(to + i, __builtin_convertvector(level_bits(from + i, row.inverse), UInt16s));
    }
    return row.scale;
}

#endif  // LINATTN_PAIRS

#ifdef LINATTN_BYTES

// Returns the scale.
static float to_bytes(const float* from, std::int64_t count, std::uint8_t* high, std::uint8_t* low) {
    const RowScale row = scale_of_row(from, count);
    for (std::int64_t i = 0; i < count; i += W<float>) {
        const UInt32s level = level_bits(from + i, row.inverse) + 0x8000u;
        store_as(high + i, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)(level >> 8)));
        store_as(low + i, _mm512_maskz_cvtepi32_epi8(0xffff, (__m512i)level));
    }
    return row.scale;
}

#endif  // LINATTN_BYTES

#ifdef LINATTN_BF16

static void to_bf16(const float* from, std::int64_t count, bf16* to) {
    for (std::int64_t i = 0; i < count; i += W<float>) Convert<float, bf16>::store_to(to + i, load(from + i));
}

#endif  // LINATTN_BF16

// Converts the inputs of a row, which begin and end with whole vectors, to the format of a product. `to` has room for
// the row, `width` numbers. Returns the inputs' scale (1 for bfloat16).
static float convert_row(ActivationFormat format, const float* from, Range inputs, std::int64_t width, void* to) {
    const std::int64_t first = inputs.low, count = inputs.high - first;
#if defined(LINATTN_BYTES)
    auto* const high = static_cast<std::uint8_t*>(to) + first;
    if (format == ActivationFormat::bytes) return to_bytes(from + first, count, high, high + width);
#elif defined(LINATTN_PAIRS)
    if (format == ActivationFormat::shorts) {
        return to_shorts(from + first, count, static_cast<std::int16_t*>(to) + first);
    }
#endif
#ifdef LINATTN_BF16
    to_bf16(from + first, count, static_cast<bf16*>(to) + first);
#endif
    (void)format, (void)from, (void)count, (void)width, (void)to;
    return 1.0f;
}

}  // namespace decoding
LINATTN_END
