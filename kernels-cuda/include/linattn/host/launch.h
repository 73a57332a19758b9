// Starting a kernel, on a GPU or in the emulation: LINATTN_LAUNCH(kernel, grid_x, grid_y, threads, shared bytes, stream,
// arguments...) is a Status that names the kernel and the CUDA error, if any.
#pragma once

#include "linattn/calls.h"

#ifdef LINATTN_EMULATED
#include "emulation/launch.hpp"
#else
#include <cuda_runtime.h>

namespace linattn {

// The status of a call of the CUDA runtime. The runtime's record of an error is cleared, or the next launch would return it.
inline Status status_of(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return {0, nullptr};
    (void)cudaGetLastError();
    return {static_cast<int>(error), what};
}

constexpr int shared_without_asking = 48 * 1024;

template <class... Parameters, class... Arguments>
Status launch(const char* name, void (*kernel)(Parameters...), Int grid_x, int grid_y, int threads, int shared,
              void* stream, const Arguments&... arguments) {
    if (grid_x > 0x7fffffffLL || grid_y > 0xffff) return {static_cast<int>(cudaErrorInvalidConfiguration), name};
    if (shared > shared_without_asking) {
        // The request is of the kernel and not of the stream, so that the launch may be captured.
        const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
        if (error != cudaSuccess) return status_of(error, name);
    }
    const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
    kernel<<<grid, threads, shared, static_cast<cudaStream_t>(stream)>>>(arguments...);
    return status_of(cudaPeekAtLastError(), name);
}

// Zeros, in the order of the stream.
inline Status clear(void* memory, Int bytes, void* stream) {
    return status_of(cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)),
                     "clear");
}

}  // namespace linattn
#endif

#define LINATTN_LAUNCH(name, kernel, grid_x, grid_y, threads, shared, stream, ...) \
    ::linattn::launch(name, kernel, grid_x, grid_y, threads, shared, stream, __VA_ARGS__)
