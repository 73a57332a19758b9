// The runtime behind the emulated device functions, compiled without ThreadSanitizer: it touches only its own memory.
// What a kernel reads or writes is read or written in platform.hpp, where a sanitizer sees it.
#pragma once

#include "emulation/numbers.hpp"

#ifdef __ELF__
#define LINATTN_FAST_TLS __attribute__((tls_model("initial-exec")))
#else
#define LINATTN_FAST_TLS
#endif

namespace linattn::emulation {

// A line of a kernel's source.
struct Place {
    const char* file;
    int line;
};

// The CUDA thread that is running on this thread of the host.
struct Running {
    int thread;
    int block_y;
    long long block_x;
    unsigned char* shared;
};
extern __thread const Running* running LINATTN_FAST_TLS;

// Aborts the kernel: `launch` throws an error that names kernel, block and place, with the formatted message.
[[noreturn]] void fail(Place place, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Raises unless `bytes` bytes from the address on lie in the block's shared memory, aligned to as many.
void check_shared(const void* address, int bytes, const char* function, Place place);

void block_barrier(Place place);
void warp_barrier(Place place);

// The collectives of a warp: each lane deposits its operands, the last one computes, each takes its result.
struct Matrices {
    u32 parts[4];
};
struct Row {
    unsigned long long words[2];
};
struct Sums {
    float parts[4];
};
u32 shuffle_bits(u32 x, int lane, Place place);
u32 shuffle_bits_xor(u32 x, int mask, Place place);
Matrices exchange_matrices(Row row, Place place);
Matrices exchange_matrices_transposed(Row row, Place place);
Sums multiply(Sums c, Matrices a, u32 b0, u32 b1, Place place);

// An asynchronous copy of `size` bytes, of which `bytes` are read and the others zero.
struct Copy {
    void* shared;
    const void* global;
    int size, bytes;
    int group;
    Place place;
};
void start_copy(void* shared, const void* global, int size, int bytes, Place place);
void commit_copies();
// Takes the oldest copy that must have arrived when all groups but the last `pending` have; false when there is none.
bool take_copy(int pending, Copy& copy);

}  // namespace linattn::emulation
