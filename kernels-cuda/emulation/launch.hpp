// Running a kernel on the CPU: `launch` returns when every block has run, or throws std::runtime_error if the kernel
// did something undefined on a GPU.
#pragma once

#include <array>

#include "linattn/host/wave.h"

namespace linattn::emulation {

struct Launch {
    const char* name;
    Int grid_x;
    int grid_y, threads, shared;
    void (*body)(const void* thread);  // runs one CUDA thread
    const void* thread;
};

Status run(const Launch& launch);

// How many blocks a multiprocessor runs side by side: as many as find shared memory and, where threads have nearly the
// most that they may have, registers.
int resident(const Launch& launch);

// The shared memory that a block may ask for, in bytes; asking more is cudaErrorInvalidValue. 232,448 at first, as on
// an H100.
void set_shared_limit(int bytes);
int get_shared_limit();

// Bytes of global memory that asynchronous copies have read since the last call.
Int take_copied_bytes();

// Instructions of the tensor cores since the last call, by the multiprocessor's four schedulers: each runs every fourth
// warp of a block.
constexpr int schedulers = 4;
std::array<Int, schedulers> take_products();

// The order in which blocks, warps and lanes run: 0 their own, -1 the reverse, otherwise one drawn from the seed.
void set_order(int seed);

}  // namespace linattn::emulation

namespace linattn {

template <class... Parameters, class... Arguments>
Status launch(const char* name, void (*kernel)(Parameters...), Int grid_x, int grid_y, int threads, int shared,
              const Start& start, const Arguments&... arguments) {
    const auto thread = [&] { kernel(arguments...); };
    const auto body = [](const void* memory) { (*static_cast<decltype(&thread)>(memory))(); };
    const emulation::Launch launch = {name, grid_x, grid_y, threads, shared, body, &thread};
    if (start.wave == nullptr) return emulation::run(launch);
    start.wave->take({grid_x * grid_y, emulation::resident(launch)});
    return {0, nullptr};
}

inline int shared_limit() { return emulation::get_shared_limit(); }

}  // namespace linattn
