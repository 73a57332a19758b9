// What a caller asks before a launch: what the GPU offers, and shared memory.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>

#include "launch_error.hpp"
#include "linattn/calls.h"

#ifdef LINATTN_EMULATED
#include "emulation/launch.hpp"
#else
#include <cuda_runtime_api.h>
#endif

namespace py = pybind11;

namespace linattn {

#ifndef LINATTN_EMULATED
namespace {

// Of a GPU: major and minor capability, multiprocessors, the most bytes of shared memory that a block may ask for.
std::array<int, 4> device_attributes(int index) {
    constexpr std::array<cudaDeviceAttr, 4> asked = {cudaDevAttrComputeCapabilityMajor,
                                                     cudaDevAttrComputeCapabilityMinor, cudaDevAttrMultiProcessorCount,
                                                     cudaDevAttrMaxSharedMemoryPerBlockOptin};
    std::array<int, 4> values{};
    for (int i = 0; i < 4; ++i) {
        expect_success("reading a GPU's attributes", cudaDeviceGetAttribute(&values[i], asked[i], index));
    }
    return values;
}

void make_current(int index) { expect_success("the change of this thread's GPU", cudaSetDevice(index)); }

}  // namespace
#endif

void register_launch(py::module_& module) {
    module.def("shared_bytes", &shared_bytes);
    module.def("step_shared_bytes", &step_shared_bytes);
#ifdef LINATTN_EMULATED
    module.def("set_shared_limit", &emulation::set_shared_limit);
    module.def("set_order", &emulation::set_order);
    module.def("take_copied_bytes", &emulation::take_copied_bytes);
    module.def("take_products", &emulation::take_products);
#else
    module.def("device_attributes", &device_attributes);
    module.def("make_current", &make_current, py::call_guard<py::gil_scoped_release>());
#endif
}

}  // namespace linattn
