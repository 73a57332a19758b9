// The CUDA driver's functions, taken from its library when they are first called: a module that links nothing of CUDA
// imports everywhere. Handles of the driver are addresses, and its results numbers, 0 for success.
#pragma once

#include <cstddef>
#include <string>

// Each function's name and parameters, as in cuda.h.
#define LINATTN_DRIVER_FUNCTIONS(each)                                                                                \
    each(cuInit, unsigned flags) each(cuDriverGetVersion, int* version)                                               \
        each(cuGetErrorName, int error, const char** name) each(cuGetErrorString, int error, const char** text) each( \
            cuDeviceGet, int* device, int ordinal) each(cuDeviceGetAttribute, int* value, int attribute, int device)  \
            each(cuDevicePrimaryCtxRetain, void** context, int device) each(cuCtxSetCurrent, void* context)           \
                each(cuCtxGetDevice, int* device) each(cuThreadExchangeStreamCaptureMode, int* mode)                  \
                    each(cuModuleLoadData, void** module, const void* image)                                          \
                        each(cuModuleGetFunction, void** function, void* module, const char* name)                    \
                            each(cuFuncSetAttribute, void* function, int attribute, int value)                        \
                                each(cuOccupancyMaxActiveBlocksPerMultiprocessor, int* blocks, void* function,        \
                                     int threads, std::size_t shared)                                                 \
                                    each(cuLaunchKernel, void* function, unsigned grid_x, unsigned grid_y,            \
                                         unsigned grid_z, unsigned threads_x, unsigned threads_y, unsigned threads_z, \
                                         unsigned shared, void* stream, void** parameters, void** extra)

namespace linattn::driver {

struct Api {
#define LINATTN_DRIVER_MEMBER(name, ...) int (*name)(__VA_ARGS__);
    LINATTN_DRIVER_FUNCTIONS(LINATTN_DRIVER_MEMBER)
#undef LINATTN_DRIVER_MEMBER
};

// Which library holds them, before the first call of any; libcuda.so.1 at first.
void use_library(const std::string& path);

// Throws std::runtime_error where the library, or a function in it, is missing, or where the driver does not start.
const Api& api();

// "<name> (<number>): <text>".
std::string described(int error);

}  // namespace linattn::driver
