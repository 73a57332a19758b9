// Rows of bfloat16 for products in pairs: the numbers that one instruction multiplies and adds stand
// together, two along the depth of the product.
#pragma once

#include "rows.hpp"
#include "products.hpp"
#include "transpose.hpp"

#ifdef __AVX512BF16__

LINATTN_BEGIN

using Halves = typename VectorOf<std::uint16_t, kVectorBytes>::type;

// Two vectors of float32, rounded, as one of bfloat16: first the lanes of `low`, then those of `high`.
LINATTN_INLINE Halves round_both(Vec<float> low, Vec<float> high) {
    return bits<Halves>(_mm512_cvtne2ps_pbh(bits<__m512>(high), bits<__m512>(low)));
}

// Lane by lane (low, high) as a pair, from the lanes of `low` followed by those of `high`.
template <std::size_t... I>
LINATTN_INLINE Halves interleave(Halves x, std::index_sequence<I...>) {
    return __builtin_shufflevector(x, x, ((I & 1) * (sizeof...(I) / 2) + I / 2)...);
}

// Rounds (rows, width) to bfloat16, in place, and writes them as rows of pairs too.
LINATTN_LOOP void round_rows(float* x, int rows, std::int64_t width, Pair* to) {
    for (std::int64_t i = 0; i < rows * width; i += 2 * W<float>) {
        const Halves rounded = round_both(load<float>(x + i), load<float>(x + i + W<float>));
        store_as(to + i / 2, rounded);
        UInt16s parts[2];
        std::memcpy(parts, &rounded, sizeof parts);
        for (int part = 0; part < 2; ++part) {
            store<float>(x + i + part * W<float>, widen_bf16(__builtin_convertvector(parts[part], UInt32s)));
        }
    }
}

// Rounds (rows, width) to bfloat16 and puts each row beside the next: (rows / 2, width) pairs.
LINATTN_LOOP void pair_rows(const float* x, std::int64_t rows, std::int64_t width, Pair* to) {
    using Lanes = std::make_index_sequence<2 * W<float>>;
    for (std::int64_t r = 0; r < rows; r += 2) {
        for (std::int64_t c = 0; c < width; c += W<float>) {
            const float* at = x + r * width + c;
            store_as(to + r / 2 * width + c, interleave(round_both(load<float>(at), load<float>(at + width)), Lanes()));
        }
    }
}

// (rows, columns) of pairs becomes (columns, rows); both are multiples of a vector.
LINATTN_INLINE void transpose_pairs(const Pair* from, std::int64_t rows, std::int64_t columns, Pair* to) {
    transpose<float>(reinterpret_cast<const float*>(from), rows, columns, columns, reinterpret_cast<float*>(to), rows);
}

LINATTN_END

#endif
