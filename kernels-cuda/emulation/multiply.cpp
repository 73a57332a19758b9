#include "emulation/multiply.hpp"

#if defined(__x86_64__) && defined(__ELF__) && !defined(__clang__)
#define LINATTN_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define LINATTN_WIDE
#endif
#define LINATTN_PRAGMA(words) _Pragma(#words)
#define LINATTN_UNROLLED(times) LINATTN_PRAGMA(GCC unroll times)

namespace linattn::emulation {
namespace {

typedef float Eight __attribute__((vector_size(32)));
typedef u32 Pairs __attribute__((vector_size(32)));

// Both numbers of each pair, the low ones first.
inline __attribute__((always_inline)) void decode(const u32* pairs, float (&numbers)[2][32]) {
    for (int i = 0; i < 32; i += 8) {
        Pairs eight;
        __builtin_memcpy(&eight, pairs + i, sizeof eight);
        const Pairs low = eight << 16, high = eight & 0xffff0000u;
        __builtin_memcpy(&numbers[0][i], &low, sizeof low);
        __builtin_memcpy(&numbers[1][i], &high, sizeof high);
    }
}

// A row of c from, and to, its four lanes' two registers, of which the second is 32 further.
inline __attribute__((always_inline)) void take(Eight* row, const float* registers) {
    __builtin_memcpy(row, registers, sizeof *row / 2);
    __builtin_memcpy(reinterpret_cast<char*>(row) + sizeof *row / 2, registers + 32, sizeof *row / 2);
}
inline __attribute__((always_inline)) void give(float* registers, const Eight* row) {
    __builtin_memcpy(registers, row, sizeof *row / 2);
    __builtin_memcpy(registers + 32, reinterpret_cast<const char*>(row) + sizeof *row / 2, sizeof *row / 2);
}

}  // namespace

// A row of c as its lanes hold it: columns 0 2 4 6 in one register, 1 3 5 7 in the next. b is put in that order. Four
// rows are summed at a time, so that an addition need not wait for the one before it.
LINATTN_WIDE void multiply_warp(const u32 (&a)[4][32], const u32 (&b)[2][32], float (&c)[4][32]) {
    alignas(32) float rows[4][2][32], columns[2][2][32], ordered[16][8];
    for (int i = 0; i < 4; ++i) decode(a[i], rows[i]);
    for (int half = 0; half < 2; ++half) decode(b[half], columns[half]);
    for (int k = 0; k < 16; ++k) {
        const float* numbers = columns[k / 8][k % 2] + k % 8 / 2;
        for (int n = 0; n < 8; ++n) ordered[k][n % 2 * 4 + n / 2] = numbers[4 * n];
    }
    for (int g = 0; g < 8; g += 2) {
        Eight sums[4];
        LINATTN_UNROLLED(4)
        for (int i = 0; i < 4; ++i) take(&sums[i], &c[i / 2 * 2][4 * (g + i % 2)]);
        LINATTN_UNROLLED(16)
        for (int k = 0; k < 16; ++k) {
            Eight column;
            __builtin_memcpy(&column, ordered[k], sizeof column);
            LINATTN_UNROLLED(4)
            for (int i = 0; i < 4; ++i) {
                sums[i] += rows[k / 8 * 2 + i / 2][k % 2][4 * (g + i % 2) + k % 8 / 2] * column;
            }
        }
        LINATTN_UNROLLED(4)
        for (int i = 0; i < 4; ++i) give(&c[i / 2 * 2][4 * (g + i % 2)], &sums[i]);
    }
}

}  // namespace linattn::emulation
