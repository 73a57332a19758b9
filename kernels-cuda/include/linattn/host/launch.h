// Starting a kernel, on a GPU or in the emulation: LINATTN_LAUNCH(kernel, grid_x, grid_y, threads, shared bytes, stream,
// arguments...) is a Status that names the kernel and the CUDA error, if any.
#pragma once

#include "linattn/calls.h"

#ifdef LINATTN_EMULATED
#include "emulation/launch.hpp"
#else
#include <cuda_runtime.h>

namespace linattn {

template <class... Parameters, class... Arguments>
Status launch(const char* name, void (*kernel)(Parameters...), Int grid_x, int grid_y, int threads, int shared,
              void* stream, const Arguments&... arguments) {
    // Beyond 48 KiB a kernel has to ask; the request is of the kernel and not of the stream, so that it may be captured.
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
    if (error == cudaSuccess) {
        const dim3 grid(static_cast<unsigned>(grid_x), static_cast<unsigned>(grid_y));
        kernel<<<grid, threads, shared, static_cast<cudaStream_t>(stream)>>>(arguments...);
        error = cudaGetLastError();
    }
    return {static_cast<int>(error), error == cudaSuccess ? nullptr : name};
}

// Zeros, in the order of the stream.
inline Status clear(void* memory, Int bytes, void* stream) {
    const cudaError_t error = cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream));
    return {static_cast<int>(error), error == cudaSuccess ? nullptr : "clear"};
}

}  // namespace linattn
#endif

#define LINATTN_LAUNCH(name, kernel, grid_x, grid_y, threads, shared, stream, ...) \
    ::linattn::launch(name, kernel, grid_x, grid_y, threads, shared, stream, __VA_ARGS__)
