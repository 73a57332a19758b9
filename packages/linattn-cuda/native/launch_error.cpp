#include "launch_error.hpp"

#include <stdexcept>

#ifndef LINATTN_EMULATED
#include <cuda_runtime_api.h>
#endif

namespace linattn {

namespace {

#if defined(LINATTN_EMULATED)
std::string described(int error) { return "error " + std::to_string(error) + " of the emulation"; }
#else
std::string described(int error) {
    const auto code = static_cast<cudaError_t>(error);
    (void)cudaGetLastError();  // off the record, or the next launch would be told of it
    return std::string(cudaGetErrorName(code)) + " (" + std::to_string(error) + "): " + cudaGetErrorString(code);
}
#endif

}  // namespace

void expect_success(const std::string& what, int error) {
    if (error == 0) return;
    throw std::runtime_error(what + " failed: " + described(error) + ".");
}

void expect_success(const std::string& what, const Status& status) {
    if (status.error == 0) return;
    expect_success(what + " of kernel " + (status.kernel == nullptr ? "?" : status.kernel), status.error);
}

}  // namespace linattn
