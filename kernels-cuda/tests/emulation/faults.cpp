#include "faults.hpp"

#include <cstdio>
#include <cstring>
#include <memory>

#include "testing.hpp"

namespace linattn::testing {
namespace {

// The threads of a block hand a number to their neighbor through shared memory; one barrier is missing.
LINATTN_KERNEL(64, 1) barrier_kernel(float* out) {
    LINATTN_SHARED(memory);
    auto* numbers = reinterpret_cast<float*>(memory);
    const int thread = thread_index();
    numbers[thread] = static_cast<float>(thread);
    out[thread] = numbers[(thread + 1) % 64];
}

// The same, with a barrier of the warp where the block's is needed: the last lane's neighbor is in another warp.
LINATTN_KERNEL(64, 1) warp_barrier_kernel(float* out) {
    LINATTN_SHARED(memory);
    auto* numbers = reinterpret_cast<float*>(memory);
    const int thread = thread_index();
    numbers[thread] = static_cast<float>(thread);
    LINATTN_WARP_BARRIER();
    out[thread] = numbers[(thread + 1) % 64];
}

// A copy has arrived for the thread that waited for it, and for no other.
LINATTN_KERNEL(64, 1) copy_kernel(const float* in, float* out) {
    LINATTN_SHARED(memory);
    auto* numbers = reinterpret_cast<float*>(memory);
    const int thread = thread_index();
    copy4(numbers + thread, in + thread, true);
    copies_commit();
    copies_wait<0>();
    out[thread] = numbers[(thread + 1) % 64];
}

// A buffer is filled again while others may still read it.
LINATTN_KERNEL(64, 1) reuse_kernel(const float* in, float* out) {
    LINATTN_SHARED(memory);
    auto* numbers = reinterpret_cast<float*>(memory);
    const int thread = thread_index();
    for (int i = 0; i < 2; ++i) {
        copy4(numbers + thread, in + thread, true);
        copies_commit();
        copies_wait<0>();
        LINATTN_BLOCK_BARRIER();
        out[thread] = numbers[(thread + 1) % 64];
    }
}

// Blocks add to one number.
LINATTN_KERNEL(64, 1) blocks_kernel(float* out) {
    if (thread_index() == 0) *out += 1.0f;
}

LINATTN_KERNEL(64, 1) shared_bound_kernel(float* out) {
    LINATTN_SHARED(memory);
    auto* numbers = reinterpret_cast<float*>(memory);
    numbers[thread_index() + 1] = 1.0f;
    LINATTN_BLOCK_BARRIER();
    out[thread_index()] = numbers[thread_index()];
}

LINATTN_KERNEL(64, 1) global_bound_kernel(float* out) { out[thread_index() + 1] = 1.0f; }

LINATTN_KERNEL(64, 1) copy_bound_kernel(const float* in) {
    LINATTN_SHARED(memory);
    copy4(memory + 4 * thread_index(), in + thread_index() + 1, true);
    copies_commit();
    copies_wait<0>();
}

struct Fault {
    const char* name;
    void (*run)(const float* in, float* out);
};

const Fault faults[] = {
    {"barrier", [](const float*, float* out) { run(barrier_kernel, 64, 256, out); }},
    {"warp-barrier", [](const float*, float* out) { run(warp_barrier_kernel, 64, 256, out); }},
    {"copy", [](const float* in, float* out) { run(copy_kernel, 64, 256, in, out); }},
    {"reuse", [](const float* in, float* out) { run(reuse_kernel, 64, 256, in, out); }},
    {"blocks", [](const float*, float* out) { LINATTN_LAUNCH("blocks", blocks_kernel, 8, 1, 64, 0, {}, out); }},
    {"shared-bound", [](const float*, float* out) { run(shared_bound_kernel, 64, 256, out); }},
    {"global-bound", [](const float*, float* out) { run(global_bound_kernel, 64, 256, out); }},
    {"copy-bound", [](const float* in, float*) { run(copy_bound_kernel, 64, 256, in); }},
};

}  // namespace

int run_fault(const char* name) {
    const std::unique_ptr<float[]> in(new float[64]()), out(new float[64]());
    for (const Fault& fault : faults) {
        if (std::strcmp(fault.name, name) != 0) continue;
        fault.run(in.get(), out.get());
        std::printf("fault %s: no sanitizer reported it\n", name);
        return 0;
    }
    std::fprintf(stderr, "fault: expected a name such as barrier or shared-bound, got %s.\n", name);
    return 2;
}

}  // namespace linattn::testing
