// The few things that only a GPU has, by names of our own: indices, barriers, asynchronous copies, tensor cores. Every
// kernel is written against these alone. Compiled with LINATTN_EMULATED, the same names run on a CPU, so that the very
// source of the kernels is tested where there is no GPU.
#pragma once

#ifdef LINATTN_EMULATED
#include "emulation/platform.hpp"
#else

#define LINATTN_DEVICE __device__ __forceinline__
#define LINATTN_KERNEL(threads, blocks) __global__ void __launch_bounds__(threads, blocks)
#define LINATTN_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define LINATTN_PARAMETER __grid_constant__  // a kernel's parameter that it reads in place
#define LINATTN_UNROLL _Pragma("unroll")
#define LINATTN_UNROLL_NONE _Pragma("unroll 1")  // where more at once would cost registers

// All threads of the block, or of the warp, have come here, and see what the others wrote before.
#define LINATTN_BLOCK_BARRIER() __syncthreads()
#define LINATTN_WARP_BARRIER() __syncwarp()

namespace linattn {

using u16 = unsigned short;
using u32 = unsigned int;

LINATTN_DEVICE int thread_index() { return static_cast<int>(threadIdx.x); }
LINATTN_DEVICE long long block_x() { return blockIdx.x; }
LINATTN_DEVICE int block_y() { return static_cast<int>(blockIdx.y); }

// The value of the lane whose number differs in the bits of `mask`.
LINATTN_DEVICE float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
LINATTN_DEVICE float shuffle(float x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }
LINATTN_DEVICE u32 shuffle(u32 x, int lane) { return __shfl_sync(0xffffffffu, x, lane); }

LINATTN_DEVICE u32 shared_address(const void* pointer) { return static_cast<u32>(__cvta_generic_to_shared(pointer)); }

// Starts copying 16 bytes to shared memory, of which the first `bytes` are read and the others zero.
LINATTN_DEVICE void copy16(void* shared, const void* global, int bytes) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
#else
    if (bytes == 16) {
        *static_cast<uint4*>(shared) = *static_cast<const uint4*>(global);
    } else {
        for (int i = 0; i < 16; ++i) {
            static_cast<unsigned char*>(shared)[i] = i < bytes ? static_cast<const unsigned char*>(global)[i] : 0;
        }
    }
#endif
}

// The same for 4 bytes, all or none of which are read.
LINATTN_DEVICE void copy4(void* shared, const void* global, bool exists) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(global),
                 "r"(exists ? 4 : 0)
                 : "memory");
#else
    *static_cast<u32*>(shared) = exists ? *static_cast<const u32*>(global) : 0u;
#endif
}

// Closes the group of copies that this thread has started since the last one.
LINATTN_DEVICE void copies_commit() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all of this thread's groups but the last `pending` have arrived.
template <int pending>
LINATTN_DEVICE void copies_wait() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
#endif
}

// Four 8 x 8 matrices of 16-bit numbers from shared memory: lane l gives the address of row l % 8 (16 bytes) of matrix
// l / 8, and gets of each matrix the pair at row l / 4, columns 2 (l % 4) and one more.
LINATTN_DEVICE void load_matrices(u32 (&matrices)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The same of the transposed matrices: the pair is of column l / 4, at rows 2 (l % 4) and one more.
LINATTN_DEVICE void load_matrices_transposed(u32 (&matrices)[4], const void* row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// The reverse, to four neighbors of a tile with `pitch` bytes from row to row: two above each other, then the two to
// their right. Lane l gives the address of row l % 16 of the left ones, or of row l - 16 of the right ones.
LINATTN_DEVICE void store_matrices(void* row, int pitch, u32 pair0, u32 pair1, u32 pair2, u32 pair3) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
                 "r"(pair0), "r"(pair1), "r"(pair2), "r"(pair3)
                 : "memory");
#else
    // From where this lane's row is to where its pairs belong.
    const int lane = static_cast<int>(threadIdx.x) % 32, down = lane / 4 - lane % 16;
    unsigned char* const bytes = static_cast<unsigned char*>(row) + (down * pitch + (lane % 4 - lane / 16 * 4) * 4);
    u32 *const upper = reinterpret_cast<u32*>(bytes), *const lower = reinterpret_cast<u32*>(bytes + 8 * pitch);
    upper[0] = pair0, lower[0] = pair1, upper[4] = pair2, lower[4] = pair3;
#endif
}

#if __CUDA_ARCH__ < 800
// Turing's tensor cores know no bfloat16: the same sums by plain multiplications, lanes handing pairs around. Not
// inline, for there would be hundreds of copies.
static __device__ __noinline__ void multiply_without_tensor_cores(float& c0, float& c1, float& c2, float& c3, u32 a0,
                                                                  u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    const int lane = static_cast<int>(threadIdx.x) % 32, row = lane & ~3, pair = lane % 4;
    for (int half = 0; half < 2; ++half) {
        for (int t = 0; t < 4; ++t) {
            const u32 upper = shuffle(half ? a2 : a0, row + t), lower = shuffle(half ? a3 : a1, row + t);
            const u32 first = shuffle(half ? b1 : b0, 8 * pair + t), second = shuffle(half ? b1 : b0, 8 * pair + 4 + t);
            for (int shift = 16; shift >= 0; shift -= 16) {
                const float up = __uint_as_float((upper << shift) & 0xffff0000u);
                const float down = __uint_as_float((lower << shift) & 0xffff0000u);
                const float left = __uint_as_float((first << shift) & 0xffff0000u);
                const float right = __uint_as_float((second << shift) & 0xffff0000u);
                c0 += up * left;
                c1 += up * right;
                c2 += down * left;
                c3 += down * right;
            }
        }
    }
}
#endif

// c += a b of bfloat16 matrices with float32 sums, a 16 x 16, b 16 x 8, c 16 x 8, spread over the warp. With
// g = lane / 4 and t = lane % 4 a register holds two neighbors, the first in its low half:
//   a: (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8);  b: rows 2t and 2t + 8 of column g;
//   c: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1).
LINATTN_DEVICE void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    multiply_without_tensor_cores(c[0], c[1], c[2], c[3], a[0], a[1], a[2], a[3], b0, b1);
#endif
}

// Two numbers rounded to bfloat16, to the nearest, ties to even; NaN stays NaN.
LINATTN_DEVICE u32 pack_bf16(float low, float high) {
    u32 packed;
#if __CUDA_ARCH__ >= 800
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
#else
    const auto round = [](float x) {
        const u32 bits = __float_as_uint(x);
        return x != x ? 0x7fffu : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    };
    packed = round(low) | (round(high) << 16);
#endif
    return packed;
}

LINATTN_DEVICE float bits_to_float(u32 bits) { return __uint_as_float(bits); }
LINATTN_DEVICE u32 float_to_bits(float x) { return __float_as_uint(x); }
LINATTN_DEVICE float half_to_float(u16 x) {
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x));
    return y;
}
LINATTN_DEVICE u16 float_to_half(float x) {
    u16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}

// e^x to float32 accuracy; and faster, to 17 bits or more between -87 and 0, and 0 below.
LINATTN_DEVICE float exponential(float x) { return expf(x); }
LINATTN_DEVICE float fast_exponential(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * 1.44269504f));
    return y;
}

// 1 / x to 23 bits, for numbers of which neither x nor the inverse is subnormal.
LINATTN_DEVICE float fast_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

}  // namespace linattn
#endif
