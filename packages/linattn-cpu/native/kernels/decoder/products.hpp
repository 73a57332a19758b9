// Rows of activations times one panel of packed weights, for each pair of formats.
#pragma once

#include "kernels/decoder/packing.hpp"

#ifdef __SSE2__
#include <immintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

LINATTN_BEGIN
namespace decoding {

// The formats of activations in a product: float32; bfloat16; or 16-bit integers with a scale for each row, stored
// either as they are (shorts) or as two planes of 8 bits (bytes).
enum class ActivationFormat { floats, bf16, shorts, bytes };

// Rows of activations, converted for a product. A row has `width` numbers, whole panels; past its end the numbers
// must be finite, because the weights there are 0; tiles also read past it, see `operand_rows`. With `bytes`, a row
// is its high bytes, offset by 128, then its low bytes.
struct Operand {
    const void* rows;
    std::int64_t width;
    const float* scales;  // for integers: the scale of each row, or of the inputs of it that were converted
};

// R rows of sums for the registers of P panels side by side, two each.
template <int R, int P = 1>
struct Sums {
    Vec<float> of[R][2 * P];
};

// The bytes of one group of inputs of a panel: a word of 32 bits for each output.
inline constexpr std::int64_t kGroupBytes = kPanel * 4;

// A panel's weights for the inputs from inputs.low, a multiple of kPanel, to inputs.high; or those of several panels from
// this one on.
struct Piece {
    std::int64_t panel;
    Range inputs;
};

// The groups of a piece in memory.
struct Groups {
    const char* at;
    std::int64_t count;
    std::int64_t panel_bytes;  // to the same groups of the next panel
};
LINATTN_INLINE Groups groups_of(const PackedMatrix& matrix, WeightFormat format, const Piece& piece) {
    const std::int64_t group = group_of(format), all = (matrix.inputs + group - 1) / group;
    const std::int64_t low = piece.inputs.low / group, high = (piece.inputs.high + group - 1) / group;
    const char* const panels = static_cast<const char*>(matrix.panels);
    return {panels + (piece.panel * all + low) * kGroupBytes, (high < all ? high : all) - low, all * kGroupBytes};
}

// A single row is limited by reading the weights. On Intel's processors, for which the build for AMX stands, it helps to
// prefetch bfloat16 weights so many groups ahead; this was measured. On AMD's, prefetches only take time.
inline constexpr std::int64_t kGroupsAhead = 4096 / kGroupBytes;
template <WeightFormat F, int R>
inline constexpr bool kPrefetches =
#ifdef LINATTN_TILES
    F == WeightFormat::bfloat16 && R == 1;
#else
    false;
#endif

LINATTN_INLINE void prefetch_group(const char* at) {
    for (int line = 0; line < kGroupBytes; line += 64) __builtin_prefetch(at + line);
}

// Input i of one word of 32 bits, for W outputs.
template <WeightFormat F>
LINATTN_INLINE Vec<float> weight_of(UInt32s word, int i) {
    if constexpr (F == WeightFormat::float32) {
        return bits<Vec<float>>(word);
    } else if constexpr (F == WeightFormat::bfloat16) {
        return bits<Vec<float>>(i == 0 ? word << 16 : word & 0xffff0000u);
    } else {
        const Int32s top = bits<Int32s>(word << (24 - 8 * i));
        return __builtin_convertvector(top >> 24, Vec<float>);
    }
}

// Weights of any format, unpacked in registers, and activations in float32.
template <WeightFormat F>
struct FromFloats {
    // The number of rows multiplied at once: their sums fill the registers, with room for the weights. Packed weights
    // have to be unpacked, so more rows at once pay off.
    static constexpr int kRows = kRegisters == 32 ? 8 : F == WeightFormat::float32 ? 4 : 6;

    // The panels multiplied at once: so many that there are enough sums to hide the latency of a multiply-add. Each sum is
    // added up in the order of the inputs, whatever the number of rows.
    static constexpr int kMostPanels = 64 * group_of(F) / kVectorBytes < 4 ? 64 * group_of(F) / kVectorBytes : 4;
    template <int R>
    static constexpr int kPanels = R < kMostPanels ? kMostPanels / R : 1;

    template <int R, int P>
    LINATTN_INLINE void add_group(const float* x, std::int64_t width, const char* at, std::int64_t panel_bytes,
                                  Sums<R, P>& sums) {
        constexpr int kGroup = group_of(F);
        UInt32s words[2 * P];
#pragma GCC unroll 8
        for (int n = 0; n < 2 * P; ++n) words[n] = load_as<UInt32s>(at + n / 2 * panel_bytes + n % 2 * kVectorBytes);
#pragma GCC unroll 4
        for (int i = 0; i < kGroup; ++i) {
            Vec<float> weights[2 * P];
#pragma GCC unroll 8
            for (int n = 0; n < 2 * P; ++n) weights[n] = weight_of<F>(words[n], i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const float xr = x[r * width + i];
#pragma GCC unroll 8
                for (int n = 0; n < 2 * P; ++n) sums.of[r][n] += xr * weights[n];
            }
        }
    }

    template <int R, int P>
    LINATTN_INLINE Sums<R, P> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                       const Piece& piece) {
        const Groups groups = groups_of(matrix, F, piece);
        const float* from = static_cast<const float*>(x.rows) + row * x.width + piece.inputs.low;
        Sums<R, P> sums = {};
        const auto add = [&](std::int64_t group) __attribute__((always_inline)) {
            add_group<R, P>(from + group * group_of(F), x.width, groups.at + group * kGroupBytes, groups.panel_bytes,
                            sums);
        };
        std::int64_t group = 0;
        if constexpr (kPrefetches<F, R>) {
            // Behind a whole panel, the panel that is read next is prefetched.
            const bool whole = groups.count * kGroupBytes == groups.panel_bytes;
            for (; group < groups.count - (whole ? 0 : kGroupsAhead); ++group) {
                const bool inside = group + kGroupsAhead < groups.count;
                const char* const ahead = groups.at + (group + kGroupsAhead) * kGroupBytes;
                for (int p = 0; p < P; ++p) prefetch_group(ahead + (inside ? p : p + P - 1) * groups.panel_bytes);
                add(group);
            }
        }
        for (; group < groups.count; ++group) add(group);
        return sums;
    }
};

#ifdef LINATTN_PAIRS

using Int16s = typename VectorOf<std::int16_t, kVectorBytes>::type;

// a[2i] b[2i] + a[2i + 1] b[2i + 1] in lane i.
LINATTN_INLINE Int32s multiply_pairs(Int16s a, Int16s b) {
#if defined(__AVX512BW__)
    return (Int32s)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
    return (Int32s)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__wasm_simd128__)
    return (Int32s)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
#else
    return (Int32s)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}

// 8-bit weights and 16-bit activations: two products per lane and instruction, summed exactly in integers for as many
// groups as fit into 32 bits.
struct FromShorts {
    static constexpr int kRows = kRegisters == 32 ? 8 : 4;
    template <int R>
    static constexpr int kPanels = 1;
    static constexpr std::int64_t kExactGroups = 512 / 4;

    template <int R>
    struct Integers {
        Int32s of[R][2];
    };

    // The two inputs at `from` in every lane.
    LINATTN_INLINE Int16s broadcast_pair(const std::int16_t* from) {
        return bits<Int16s>(Int32s{} + load_as<std::int32_t>(from));
    }

    template <int R>
    LINATTN_INLINE void add_group(const std::int16_t* x, std::int64_t width, const char* group, Integers<R>& sums) {
        const auto left = load_as<Int16s>(group), right = load_as<Int16s>(group + kVectorBytes);
        const Int16s first[2] = {(left << 8) >> 8, (right << 8) >> 8}, second[2] = {left >> 8, right >> 8};
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const Int16s x0 = broadcast_pair(x + r * width), x2 = broadcast_pair(x + r * width + 2);
            sums.of[r][0] += multiply_pairs(first[0], x0);
            sums.of[r][1] += multiply_pairs(first[1], x0);
            sums.of[r][0] += multiply_pairs(second[0], x2);
            sums.of[r][1] += multiply_pairs(second[1], x2);
        }
    }

    template <int R, int>
    LINATTN_INLINE Sums<R> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                    const Piece& piece) {
        const Groups groups = groups_of(matrix, WeightFormat::int8, piece);
        const auto* from = static_cast<const std::int16_t*>(x.rows) + row * x.width + piece.inputs.low;
        Sums<R> sums = {};
        for (std::int64_t group = 0; group < groups.count;) {
            const std::int64_t high = group + kExactGroups < groups.count ? group + kExactGroups : groups.count;
            Integers<R> exact = {};
            for (; group < high; ++group) {
                add_group<R>(from + 4 * group, x.width, groups.at + group * kGroupBytes, exact);
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                sums.of[r][0] += __builtin_convertvector(exact.of[r][0], Vec<float>) * x.scales[row + r];
                sums.of[r][1] += __builtin_convertvector(exact.of[r][1], Vec<float>) * x.scales[row + r];
            }
        }
        return sums;
    }
};

#endif  // LINATTN_PAIRS

#ifdef LINATTN_BYTES

LINATTN_INLINE __m512i broadcast_word(const void* from) { return _mm512_set1_epi32(load_as<std::int32_t>(from)); }

// What the high bytes' offset of 128 adds to the sums of W outputs over the inputs.
LINATTN_INLINE Int32s offset_of(const PackedMatrix& matrix, Range inputs, std::int64_t output) {
    const std::int64_t end = round_up(inputs.high, kPanel);
    return (load(sums_before(matrix, end, output)) - load(sums_before(matrix, inputs.low, output))) * 128;
}

// The sums of 16-bit integers from those of their high and of their low bytes.
LINATTN_INLINE Vec<float> joined(Int32s high, Int32s low) {
    return __builtin_convertvector(high, Vec<float>) * 256.0f + __builtin_convertvector(low, Vec<float>);
}

// 8-bit weights and 16-bit activations: four products per lane and instruction for each of the two planes, summed
// exactly in integers.
struct FromBytes {
    static constexpr int kRows = 6;
    template <int R>
    static constexpr int kPanels = R <= 2 ? 2 : 1;

    // Sums of the high bytes and of the low ones.
    template <int R, int P>
    struct Planes {
        Int32s high[R][2 * P], low[R][2 * P];
    };

    LINATTN_INLINE Int32s add_products(Int32s sum, __m512i bytes, __m512i weights) {
        return (Int32s)_mm512_dpbusd_epi32((__m512i)sum, bytes, weights);
    }

    template <int R, int P>
    LINATTN_INLINE void add_group(const std::uint8_t* x, std::int64_t width, const char* at, std::int64_t panel_bytes,
                                  Planes<R, P>& sums) {
        __m512i weights[2 * P];
#pragma GCC unroll 4
        for (int n = 0; n < 2 * P; ++n) weights[n] = load_as<__m512i>(at + n / 2 * panel_bytes + n % 2 * kVectorBytes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const __m512i high = broadcast_word(x + r * 2 * width);
            const __m512i low = broadcast_word(x + r * 2 * width + width);
#pragma GCC unroll 4
            for (int n = 0; n < 2 * P; ++n) {
                sums.high[r][n] = add_products(sums.high[r][n], high, weights[n]);
                sums.low[r][n] = add_products(sums.low[r][n], low, weights[n]);
            }
        }
    }

    template <int R, int P>
    LINATTN_INLINE Sums<R, P> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                       const Piece& piece) {
        const Groups groups = groups_of(matrix, WeightFormat::int8, piece);
        const auto* from = static_cast<const std::uint8_t*>(x.rows) + row * 2 * x.width + piece.inputs.low;
        Planes<R, P> planes = {};
        for (std::int64_t group = 0; group < groups.count; ++group) {
            add_group<R, P>(from + 4 * group, x.width, groups.at + group * kGroupBytes, groups.panel_bytes, planes);
        }
        Sums<R, P> sums;
#pragma GCC unroll 4
        for (int n = 0; n < 2 * P; ++n) {
            const Int32s offset = offset_of(matrix, piece.inputs, piece.panel * kPanel + n * W<float>);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                sums.of[r][n] = joined(planes.high[r][n] - offset, planes.low[r][n]) * x.scales[row + r];
            }
        }
        return sums;
    }
};

#endif  // LINATTN_BYTES

// The build for AMX multiplies bfloat16 activations in tiles.
#if defined(LINATTN_BF16) && !defined(LINATTN_TILES)
#define LINATTN_BF16_VECTORS
#endif
#ifdef LINATTN_BF16_VECTORS

// Weights and activations in bfloat16: two products per lane and instruction, summed in float32.
struct FromBf16 {
    static constexpr int kRows = 8;
    template <int R>
    static constexpr int kPanels = 1;

    template <int R, int>
    LINATTN_INLINE Sums<R> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                    const Piece& piece) {
        const Groups groups = groups_of(matrix, WeightFormat::bfloat16, piece);
        const bf16* from = static_cast<const bf16*>(x.rows) + row * x.width + piece.inputs.low;
        const char* w = groups.at;
        Sums<R> sums = {};
        for (std::int64_t group = 0; group < groups.count; ++group, w += kGroupBytes) {
            const __m512bh w0 = load_as<__m512bh>(w), w1 = load_as<__m512bh>(w + kVectorBytes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512bh xr = bits<__m512bh>(broadcast_word(from + r * x.width + 2 * group));
                sums.of[r][0] = _mm512_dpbf16_ps(sums.of[r][0], xr, w0);
                sums.of[r][1] = _mm512_dpbf16_ps(sums.of[r][1], xr, w1);
            }
        }
        return sums;
    }
};

#endif  // LINATTN_BF16_VECTORS

// Calls work(panel, sums) for R rows times `count` <= P panels from `panel` on.
template <class From, int R, int P, class Work>
LINATTN_INLINE void multiply_panels(const Operand& x, std::int64_t row, const PackedMatrix& matrix, const Piece& piece,
                                    std::int64_t count, const Work& work) {
    if constexpr (P > 1) {
        if (count < P) return multiply_panels<From, R, P - 1>(x, row, matrix, piece, count, work);
    }
    work(piece.panel, From::template multiply<R, P>(x, row, matrix, piece));
}

// The same for all panels of a range, as many at once as a row needs.
template <class From, int R, class Work>
LINATTN_INLINE void for_each_product(const Operand& x, std::int64_t row, const PackedMatrix& matrix, Range panels,
                                     Range inputs, const Work& work) {
    constexpr int P = From::template kPanels<R>;
    const std::int64_t count = panels.high - panels.low, steps = (count + P - 1) / P;
    for (std::int64_t i = 0; i < steps; ++i) {
        const std::int64_t low = count * i / steps, high = count * (i + 1) / steps;
        multiply_panels<From, R, P>(x, row, matrix, {panels.low + low, inputs}, high - low, work);
    }
}

// Calls work with the struct that multiplies these formats in vectors.
template <class Work>
LINATTN_INLINE void dispatch_formats(ActivationFormat activations, WeightFormat weights, const Work& work) {
#ifdef LINATTN_BF16_VECTORS
    if (activations == ActivationFormat::bf16) return work(FromBf16{});
#endif
#if defined(LINATTN_BYTES)
    if (activations == ActivationFormat::bytes) return work(FromBytes{});
#elif defined(LINATTN_PAIRS)
    if (activations == ActivationFormat::shorts) return work(FromShorts{});
#else
    if (weights == WeightFormat::int8) return work(FromFloats<WeightFormat::int8>{});
#endif
    (void)activations;
    if (weights == WeightFormat::bfloat16) return work(FromFloats<WeightFormat::bfloat16>{});
    work(FromFloats<WeightFormat::float32>{});
}

}  // namespace decoding
LINATTN_END
