// Vectors of the instruction set that this translation unit is compiled for.
//
// Arithmetic uses the vector types of GCC and Clang; `a * b + c` becomes one fused operation if the machine has it
// (-ffp-contract=fast). Everything is in a namespace named after the instruction set, so that builds for several of
// them can be linked into one module.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "memory.hpp"

#ifndef LINATTN_ISA
#error "LINATTN_ISA names the instruction set: avx512, avx2 or baseline"
#endif

#define LINATTN_BEGIN namespace linattn::LINATTN_ISA {
#define LINATTN_END }
#define LINATTN_INLINE static inline __attribute__((always_inline))
// For loops that use all registers; if they were inlined, registers would be spilled to memory.
#define LINATTN_LOOP static __attribute__((noinline))

LINATTN_BEGIN

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64, kRegisters = 32;
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32, kRegisters = 16;
#elif defined(__aarch64__)
inline constexpr int kVectorBytes = 16, kRegisters = 32;
#else
inline constexpr int kVectorBytes = 16, kRegisters = 16;
#endif

template <class T, int Bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(Bytes)));
};

// W numbers of type T, as many as a register holds.
template <class T>
using Vec = typename VectorOf<T, kVectorBytes>::type;
template <class T>
inline constexpr int W = kVectorBytes / static_cast<int>(sizeof(T));

using Int32s = Vec<std::int32_t>;
using UInt32s = Vec<std::uint32_t>;
using UInt16s = typename VectorOf<std::uint16_t, kVectorBytes / 2>::type;

template <class V>
LINATTN_INLINE V load_as(const void* from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}
template <class V>
LINATTN_INLINE void store_as(void* to, V v) {
    std::memcpy(to, &v, sizeof v);
}
template <class T>
LINATTN_INLINE Vec<T> load(const T* from) {
    return load_as<Vec<T>>(from);
}
template <class T>
LINATTN_INLINE void store(T* to, Vec<T> v) {
    store_as(to, v);
}
// x in every lane; x - 0 is x, also for x = -0.
template <class T>
LINATTN_INLINE Vec<T> broadcast(T x) {
    return x - Vec<T>{};
}

// 0, 1, 2, ...
template <class T>
LINATTN_INLINE Vec<T> lane_numbers() {
    Vec<T> lanes{};
    for (int i = 0; i < W<T>; ++i) lanes[i] = T(i);
    return lanes;
}

// Keeps a loaded vector in its register. A compiler may otherwise load it again for every use, which is slower where loads
// are the limit.
template <class V>
LINATTN_INLINE void keep_in_register([[maybe_unused]] V& v) {
#if defined(__x86_64__) || defined(__i386__)
    asm("" : "+v"(v));
#elif defined(__aarch64__)
    asm("" : "+w"(v));
#endif
}

template <class To, class From>
LINATTN_INLINE To bits(From v) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &v, sizeof to);
    return to;
}

// Calls work(vectors, first column) for all columns: C vectors at a time, fewer at the end.
template <class T, int C, class Work>
LINATTN_INLINE void by_vectors(std::int64_t width, const Work& work, std::int64_t column = 0) {
    for (; column + C * W<T> <= width; column += C * W<T>) work(std::integral_constant<int, C>(), column);
    if constexpr (C > 1) by_vectors<T, C / 2>(width, work, column);
}

// The sum of all lanes, by repeated halving.
template <class T>
LINATTN_INLINE T sum(Vec<T> v) {
    T lanes[W<T>];
    store(lanes, v);
    for (int width = W<T> / 2; width > 0; width /= 2) {
        for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
    }
    return lanes[0];
}

LINATTN_END
