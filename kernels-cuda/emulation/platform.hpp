// The names of linattn/device/platform.cuh on a CPU; that file defines their meaning.
#pragma once

#include <cmath>

#include "emulation/numbers.hpp"
#include "emulation/runtime.hpp"

#define LINATTN_DEVICE inline
#define LINATTN_KERNEL(threads, blocks) void
#define LINATTN_SHARED(name) unsigned char* name = ::linattn::emulation::running->shared
#define LINATTN_PARAMETER
#define LINATTN_UNROLL
#define LINATTN_UNROLL_NONE

#define LINATTN_BLOCK_BARRIER() ::linattn::emulation::block_barrier({__FILE__, __LINE__})
#define LINATTN_WARP_BARRIER() ::linattn::emulation::warp_barrier({__FILE__, __LINE__})

// The caller's line, as the last arguments of a function that can raise.
#define LINATTN_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

namespace linattn {

using emulation::float_to_bits;

namespace emulation {

typedef u32 __attribute__((may_alias)) Word4;
typedef unsigned long long __attribute__((may_alias)) Word8;

// Written as plain assignments, which sanitizers instrument; a small memcpy would be expanded past them.
inline void perform(const Copy& copy) {
    if (copy.size == 4) {
        *static_cast<Word4*>(copy.shared) = copy.bytes ? *static_cast<const Word4*>(copy.global) : 0u;
    } else if (copy.bytes == 16) {
        const auto* from = static_cast<const Word8*>(copy.global);
        auto* to = static_cast<Word8*>(copy.shared);
        to[0] = from[0];
        to[1] = from[1];
    } else {
        const auto* from = static_cast<const unsigned char*>(copy.global);
        auto* to = static_cast<unsigned char*>(copy.shared);
        for (int i = 0; i < 16; ++i) to[i] = i < copy.bytes ? from[i] : 0;
    }
}

// A GPU may read as soon as the copy starts. Reading here too reports a read past an end at the copy's line.
inline void read_ends(const void* global, int bytes) {
    const auto* from = static_cast<const volatile unsigned char*>(global);
    if (bytes > 0) (void)from[0], (void)from[bytes - 1];
}

inline Row read_row(const void* row, const char* function, Place place) {
    check_shared(row, 16, function, place);
    const auto* words = static_cast<const Word8*>(row);
    return {{words[0], words[1]}};
}

inline void unpack(u32 (&matrices)[4], const Matrices& result) {
    for (int i = 0; i < 4; ++i) matrices[i] = result.parts[i];
}

}  // namespace emulation

inline int thread_index() { return emulation::running->thread; }
inline long long block_x() { return emulation::running->block_x; }
inline int block_y() { return emulation::running->block_y; }

inline float shuffle_xor(float x, int mask, LINATTN_CALLER) {
    return bits_to_float(emulation::shuffle_bits_xor(emulation::float_to_bits(x), mask, {file, line}));
}
inline float shuffle(float x, int lane, LINATTN_CALLER) {
    return bits_to_float(emulation::shuffle_bits(emulation::float_to_bits(x), lane, {file, line}));
}
inline u32 shuffle(u32 x, int lane, LINATTN_CALLER) { return emulation::shuffle_bits(x, lane, {file, line}); }

// Until its group is waited for, the destination holds NaN.
inline void copy16(void* shared, const void* global, int bytes, LINATTN_CALLER) {
    emulation::start_copy(shared, global, 16, bytes, {file, line});
    emulation::read_ends(global, bytes);
    auto* to = static_cast<emulation::Word8*>(shared);
    to[0] = to[1] = ~0ull;
}
inline void copy4(void* shared, const void* global, bool exists, LINATTN_CALLER) {
    emulation::start_copy(shared, global, 4, exists ? 4 : 0, {file, line});
    emulation::read_ends(global, exists ? 4 : 0);
    *static_cast<emulation::Word4*>(shared) = ~0u;
}
inline void copies_commit() { emulation::commit_copies(); }

template <int pending>
inline void copies_wait() {
    for (emulation::Copy copy; emulation::take_copy(pending, copy);) emulation::perform(copy);
}

inline void load_matrices(u32 (&matrices)[4], const void* row, LINATTN_CALLER) {
    const emulation::Place place{file, line};
    emulation::unpack(matrices, emulation::exchange_matrices(emulation::read_row(row, "load_matrices", place), place));
}
inline void load_matrices_transposed(u32 (&matrices)[4], const void* row, LINATTN_CALLER) {
    const emulation::Place place{file, line};
    const emulation::Row words = emulation::read_row(row, "load_matrices_transposed", place);
    emulation::unpack(matrices, emulation::exchange_matrices_transposed(words, place));
}

inline void store_matrices(void* row, int pitch, u32 pair0, u32 pair1, u32 pair2, u32 pair3) {
    const int lane = thread_index() % 32, down = lane / 4 - lane % 16;
    unsigned char* const first = static_cast<unsigned char*>(row) + (down * pitch + (lane % 4 - lane / 16 * 4) * 4);
    auto* const upper = reinterpret_cast<emulation::Word4*>(first);
    auto* const lower = reinterpret_cast<emulation::Word4*>(first + 8 * pitch);
    upper[0] = pair0, lower[0] = pair1, upper[4] = pair2, lower[4] = pair3;
}

inline void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1, LINATTN_CALLER) {
    const emulation::Sums sums =
        emulation::multiply({{c[0], c[1], c[2], c[3]}}, {{a[0], a[1], a[2], a[3]}}, b0, b1, {file, line});
    for (int i = 0; i < 4; ++i) c[i] = sums.parts[i];
}

inline float exponential(float x) { return std::exp(x); }
inline float fast_exponential(float x) { return std::exp(x); }
inline float fast_inverse(float x) { return 1.0f / x; }

}  // namespace linattn
