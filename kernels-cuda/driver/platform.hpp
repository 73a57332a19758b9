// The names of linattn/device/platform.cuh where the host's half of a source is compiled alone. Kernels are only named
// there: NVRTC compiles them when they are first launched. What is declared here is defined nowhere.
#pragma once

#define LINATTN_DEVICE inline
#define LINATTN_KERNEL(threads, blocks) inline void
#define LINATTN_SHARED(name) extern unsigned char name[]
#define LINATTN_PARAMETER
#define LINATTN_UNROLL
#define LINATTN_UNROLL_NONE

#define LINATTN_BLOCK_BARRIER() static_cast<void>(0)
#define LINATTN_WARP_BARRIER() static_cast<void>(0)

namespace linattn {

using u16 = unsigned short;
using u32 = unsigned int;

int thread_index();
long long block_x();
int block_y();

float shuffle_xor(float x, int mask);
float shuffle(float x, int lane);
u32 shuffle(u32 x, int lane);

void copy16(void* shared, const void* global, int bytes);
void copy4(void* shared, const void* global, bool exists);
void copies_commit();
template <int pending>
void copies_wait();

void load_matrices(u32 (&matrices)[4], const void* row);
void load_matrices_transposed(u32 (&matrices)[4], const void* row);
void multiply_bf16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1);

u32 pack_bf16(float low, float high);
float bits_to_float(u32 bits);
u32 float_to_bits(float x);
float half_to_float(u16 x);
u16 float_to_half(float x);
float exponential(float x);
float fast_exponential(float x);

}  // namespace linattn
