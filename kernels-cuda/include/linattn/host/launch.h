// Starting a kernel, on a GPU or in the emulation: LINATTN_LAUNCH(name, kernel, grid_x, grid_y, threads, shared bytes,
// start, arguments...) is a Status that names the kernel and the CUDA error, if any. The name is the kernel's own.
#pragma once

#include "linattn/host/wave.h"

#ifdef LINATTN_EMULATED
#include "emulation/launch.hpp"

#define LINATTN_LAUNCH(name, kernel, ...) ::linattn::launch(name, kernel, __VA_ARGS__)
#else
#include <cuda_runtime.h>

#include <array>
#include <atomic>
#include <mutex>

namespace linattn {

// The status of a call of the CUDA runtime. The runtime's record of an error is cleared, or the next launch would
// return it.
inline Status status_of(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return {0, nullptr};
    (void)cudaGetLastError();
    return {static_cast<int>(error), what};
}

constexpr int shared_without_asking = 48 * 1024;

// The shared memory that blocks of one kernel are allowed to have, on each GPU.
using Allowed = std::array<std::atomic<int>, 64>;

inline std::mutex& allowing_shared() {
    static std::mutex mutex;
    return mutex;
}

// Allows the kernel blocks with so much shared memory, which is asked for once. Never less than before: another thread
// may be about to launch it with that. The request is of the kernel and not of the stream, so that the launch may be
// captured.
template <class... Parameters>
Status allow_shared(Allowed& allowed, const char* name, void (*kernel)(Parameters...), int shared) {
    if (shared <= shared_without_asking) return {0, nullptr};
    int device = 0;
    Status status = status_of(cudaGetDevice(&device), name);
    std::atomic<int>& known = allowed[static_cast<unsigned>(device) % allowed.size()];
    const bool is_known = device < static_cast<int>(allowed.size());
    if (status.error != 0 || (is_known && shared <= known.load(std::memory_order_acquire))) return status;
    const std::lock_guard<std::mutex> lock(allowing_shared());
    cudaFuncAttributes now{};
    status = status_of(cudaFuncGetAttributes(&now, kernel), name);
    if (status.error == 0 && shared > now.maxDynamicSharedSizeBytes) {
        status = status_of(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared), name);
    }
    if (status.error == 0 && is_known && shared > known) known.store(shared, std::memory_order_release);
    return status;
}

// The shared memory that a block may ask for on the current GPU, in bytes, which is asked for once; 0 if unknown.
inline int shared_limit() {
    static std::array<std::atomic<int>, 64> limits{};
    int device = 0, limit = 0;
    if (status_of(cudaGetDevice(&device), "").error != 0 || device >= static_cast<int>(limits.size())) return 0;
    std::atomic<int>& known = limits[static_cast<unsigned>(device)];
    if ((limit = known.load(std::memory_order_relaxed)) > 0) return limit;
    const auto error = cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (status_of(error, "").error != 0) return 0;
    known.store(limit, std::memory_order_relaxed);
    return limit;
}

template <class... Parameters, class... Arguments>
Status launch(Allowed& allowed, const char* name, void (*kernel)(Parameters...), Int grid_x, int grid_y, int threads,
              int shared, const Start& start, const Arguments&... arguments) {
    if (grid_x > 0x7fffffffLL || grid_y > 0xffff) return {static_cast<int>(cudaErrorInvalidConfiguration), name};
    const Status status = allow_shared(allowed, name, kernel, shared);
    if (status.error != 0) return status;
    if (start.wave != nullptr) {
        int resident = 0;
        const auto error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);
        start.wave->take({grid_x * grid_y, resident});
        return status_of(error, name);
    }
    const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
    kernel<<<grid, threads, shared, static_cast<cudaStream_t>(start.stream)>>>(arguments...);
    return status_of(cudaPeekAtLastError(), name);
}

}  // namespace linattn

// Each place in the code has a kernel of its own.
#define LINATTN_LAUNCH(name, kernel, ...)                             \
    [&] {                                                             \
        static ::linattn::Allowed allowed{};                          \
        return ::linattn::launch(allowed, name, kernel, __VA_ARGS__); \
    }()
#endif
