#include "launch_error.hpp"

#include <stdexcept>

#ifndef LINATTN_EMULATED
#include <cuda_runtime_api.h>
#endif

namespace linattn {

namespace {

#ifdef LINATTN_EMULATED
std::string described(int error) { return "error " + std::to_string(error) + " of the emulation"; }
#else
std::string described(int error) {
    const auto code = static_cast<cudaError_t>(error);
    return std::string(cudaGetErrorName(code)) + " (" + std::to_string(error) + "): " + cudaGetErrorString(code);
}
#endif

}  // namespace

void expect_success(const std::string& what, int error) {
    if (error == 0) return;
#ifndef LINATTN_EMULATED
    (void)cudaGetLastError();  // off the record, or the next launch would be told of it
#endif
    throw std::runtime_error(what + " failed: " + described(error) + ".");
}

void expect_launched(const Status& status) {
    if (status.error == 0) return;
    expect_success("the launch of kernel " + std::string(status.kernel == nullptr ? "?" : status.kernel), status.error);
}

}  // namespace linattn
