// Rows of activations times one panel of packed weights, for each pair of formats.
#pragma once

#include "kernels/decoder/packing.hpp"

#ifdef __SSE2__
#include <immintrin.h>
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
    const float* scales;  // for integers: the scale of each row
};

// R rows of sums for the two registers of a panel.
template <int R>
struct Sums {
    Vec<float> of[R][2];
};

// Sums per output and row: with few rows there are too few sums to hide the latency of a multiply-add, so several
// are kept and added at the end.
template <int R>
inline constexpr int kWays = R == 1   ? 4
                             : R <= 3 ? 2
                                      : 1;

// The words of one input, or group of inputs, of a panel.
inline constexpr std::int64_t kWordBytes = kPanel * 4;

// A panel's weights for the inputs from inputs.begin, a multiple of kPanel, to inputs.end.
struct Piece {
    std::int64_t panel;
    Share inputs;
};

// The words of a piece in memory.
struct Words {
    const char* at;
    std::int64_t count;
    bool are_all;  // of the panel; then the next panel follows
};
LINATTN_INLINE Words words_of(const PackedMatrix& matrix, WeightFormat format, const Piece& piece) {
    const std::int64_t group = group_of(format), all = (matrix.inputs + group - 1) / group;
    const std::int64_t begin = piece.inputs.begin / group, end = (piece.inputs.end + group - 1) / group;
    const std::int64_t count = (end < all ? end : all) - begin;
    const char* const panels = static_cast<const char*>(matrix.panels);
    return {panels + (piece.panel * all + begin) * kWordBytes, count, count == all};
}

// A single row is limited by reading the weights. Where the processor does not prefetch enough of them, they are
// prefetched so many words ahead: by measurement, weights in bfloat16 on Intel's processors, for which the build for AMX
// stands. On AMD's, prefetches only take time.
inline constexpr std::int64_t kWordsAhead = 4096 / kWordBytes;
template <WeightFormat F, int R>
inline constexpr bool kPrefetches =
#ifdef LINATTN_TILES
    F == WeightFormat::bfloat16 && R == 1;
#else
    false;
#endif

// Calls add(word, way) for the words from begin to end.
template <int Ways, bool Prefetches, class Add>
LINATTN_INLINE void for_words(const char* words, std::int64_t begin, std::int64_t end, const Add& add) {
    std::int64_t word = begin;
    for (; word + Ways <= end; word += Ways) {
#pragma GCC unroll 4
        for (int way = 0; way < Ways; ++way) {
            if constexpr (Prefetches) {
                const char* const ahead = words + (word + way + kWordsAhead) * kWordBytes;
                for (int line = 0; line < kWordBytes; line += 64) __builtin_prefetch(ahead + line);
            }
            add(word + way, way);
        }
    }
    for (; word < end; ++word) add(word, 0);
}

// The same for all words of a piece. What follows a part of a panel is not read next, so it is not prefetched.
template <int Ways, bool Prefetches, class Add>
LINATTN_INLINE void for_each_word(const Words& words, const Add& add) {
    const std::int64_t unfetched = !Prefetches || words.are_all ? 0 : kWordsAhead;
    const std::int64_t last = words.count > unfetched ? words.count - unfetched : 0;
    for_words<Ways, Prefetches>(words.at, 0, last, add);
    if constexpr (Prefetches) for_words<Ways, false>(words.at, last, words.count, add);
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

    template <int R>
    LINATTN_INLINE void add_word(const float* x, std::int64_t width, const char* word, Sums<R>& sums) {
        constexpr int kGroup = group_of(F);
        const UInt32s left = load_as<UInt32s>(word), right = load_as<UInt32s>(word + kVectorBytes);
#pragma GCC unroll 4
        for (int i = 0; i < kGroup; ++i) {
            const Vec<float> w0 = weight_of<F>(left, i), w1 = weight_of<F>(right, i);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const float xr = x[r * width + i];
                sums.of[r][0] += xr * w0;
                sums.of[r][1] += xr * w1;
            }
        }
    }

    template <int R>
    LINATTN_INLINE Sums<R> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                    const Piece& piece) {
        constexpr int kGroup = group_of(F);
        const Words words = words_of(matrix, F, piece);
        const float* from = static_cast<const float*>(x.rows) + row * x.width + piece.inputs.begin;
        Sums<R> ways[kWays<R>] = {};
        for_each_word<kWays<R>, kPrefetches<F, R>>(
            words, [&](std::int64_t word, int way) __attribute__((always_inline)) {
                add_word<R>(from + word * kGroup, x.width, words.at + word * kWordBytes, ways[way]);
            });
#pragma GCC unroll 4
        for (int way = 1; way < kWays<R>; ++way) {
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                ways[0].of[r][0] += ways[way].of[r][0];
                ways[0].of[r][1] += ways[way].of[r][1];
            }
        }
        return ways[0];
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
#else
    return (Int32s)_mm_madd_epi16((__m128i)a, (__m128i)b);
#endif
}

// 8-bit weights and 16-bit activations: two products per lane and instruction, summed exactly in integers for as many
// words as fit into 32 bits.
struct FromShorts {
    static constexpr int kRows = kRegisters == 32 ? 8 : 4;
    static constexpr std::int64_t kExactWords = 512 / 4;

    template <int R>
    struct Integers {
        Int32s of[R][2];
    };

    // The two inputs at `from` in every lane.
    LINATTN_INLINE Int16s broadcast_pair(const std::int16_t* from) {
        return bits<Int16s>(Int32s{} + load_as<std::int32_t>(from));
    }

    template <int R>
    LINATTN_INLINE void add_word(const std::int16_t* x, std::int64_t width, const char* word, Integers<R>& sums) {
        const auto left = load_as<Int16s>(word), right = load_as<Int16s>(word + kVectorBytes);
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

    template <int R>
    LINATTN_INLINE Sums<R> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                    const Piece& piece) {
        const Words words = words_of(matrix, WeightFormat::int8, piece);
        const auto* from = static_cast<const std::int16_t*>(x.rows) + row * x.width + piece.inputs.begin;
        Sums<R> sums = {};
        for (std::int64_t word = 0; word < words.count;) {
            const std::int64_t end = word + kExactWords < words.count ? word + kExactWords : words.count;
            Integers<R> exact = {};
            for (; word < end; ++word) add_word<R>(from + 4 * word, x.width, words.at + word * kWordBytes, exact);
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
LINATTN_INLINE Int32s offset_of(const PackedMatrix& matrix, Share inputs, std::int64_t output) {
    const std::int64_t end = round_up(inputs.end, kPanel);
    return (load(sums_before(matrix, end, output)) - load(sums_before(matrix, inputs.begin, output))) * 128;
}

// The sums of 16-bit integers from those of their high and of their low bytes.
LINATTN_INLINE Vec<float> joined(Int32s high, Int32s low) {
    return __builtin_convertvector(high, Vec<float>) * 256.0f + __builtin_convertvector(low, Vec<float>);
}

// 8-bit weights and 16-bit activations: four products per lane and instruction for each of the two planes, summed
// exactly in integers.
struct FromBytes {
    static constexpr int kRows = 6;

    // Sums of the high bytes and of the low ones.
    template <int R>
    struct Planes {
        Int32s high[R][2], low[R][2];
    };

    LINATTN_INLINE Int32s add_products(Int32s sum, __m512i bytes, __m512i weights) {
        return (Int32s)_mm512_dpbusd_epi32((__m512i)sum, bytes, weights);
    }

    template <int R>
    LINATTN_INLINE void add_word(const std::uint8_t* x, std::int64_t width, const char* word, Planes<R>& sums) {
        const __m512i w0 = load_as<__m512i>(word), w1 = load_as<__m512i>(word + kVectorBytes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const __m512i high = broadcast_word(x + r * 2 * width);
            const __m512i low = broadcast_word(x + r * 2 * width + width);
            sums.high[r][0] = add_products(sums.high[r][0], high, w0);
            sums.high[r][1] = add_products(sums.high[r][1], high, w1);
            sums.low[r][0] = add_products(sums.low[r][0], low, w0);
            sums.low[r][1] = add_products(sums.low[r][1], low, w1);
        }
    }

    template <int R>
    LINATTN_INLINE Sums<R> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                    const Piece& piece) {
        constexpr int kWays = R <= 2 ? 2 : 1;
        const Words words = words_of(matrix, WeightFormat::int8, piece);
        const auto* from = static_cast<const std::uint8_t*>(x.rows) + row * 2 * x.width + piece.inputs.begin;
        Planes<R> ways[kWays] = {};
        for_each_word<kWays, kPrefetches<WeightFormat::int8, R>>(
            words, [&](std::int64_t word, int way) __attribute__((always_inline)) {
                add_word<R>(from + 4 * word, x.width, words.at + word * kWordBytes, ways[way]);
            });
        Sums<R> sums;
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const Int32s offset = offset_of(matrix, piece.inputs, piece.panel * kPanel + half * W<float>);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                Int32s high = ways[0].high[r][half], low = ways[0].low[r][half];
                if constexpr (kWays == 2) {
                    high += ways[1].high[r][half];
                    low += ways[1].low[r][half];
                }
                sums.of[r][half] = joined(high - offset, low) * x.scales[row + r];
            }
        }
        return sums;
    }
};

#endif  // LINATTN_BYTES

#ifdef LINATTN_BF16

// Weights and activations in bfloat16: two products per lane and instruction, summed in float32.
struct FromBf16 {
    static constexpr int kRows = 8;

    template <int R>
    LINATTN_INLINE Sums<R> multiply(const Operand& x, std::int64_t row, const PackedMatrix& matrix,
                                    const Piece& piece) {
        const Words words = words_of(matrix, WeightFormat::bfloat16, piece);
        const bf16* from = static_cast<const bf16*>(x.rows) + row * x.width + piece.inputs.begin;
        const char* w = words.at;
        Sums<R> sums = {};
        for (std::int64_t word = 0; word < words.count; ++word, w += kWordBytes) {
            const __m512bh w0 = load_as<__m512bh>(w), w1 = load_as<__m512bh>(w + kVectorBytes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const __m512bh xr = bits<__m512bh>(broadcast_word(from + r * x.width + 2 * word));
                sums.of[r][0] = _mm512_dpbf16_ps(sums.of[r][0], xr, w0);
                sums.of[r][1] = _mm512_dpbf16_ps(sums.of[r][1], xr, w1);
            }
        }
        return sums;
    }
};

#endif  // LINATTN_BF16

// Calls work(From{}) with the product of the formats, in vectors.
template <class Work>
LINATTN_INLINE void for_formats(ActivationFormat activations, WeightFormat weights, const Work& work) {
#ifdef LINATTN_BF16
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
