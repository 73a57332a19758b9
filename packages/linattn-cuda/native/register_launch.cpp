// What a caller asks before a launch: what the GPU offers, shared memory, the schedule.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <utility>

#include "launch_error.hpp"
#include "linattn/calls.h"

#ifdef LINATTN_EMULATED
#include "emulation/launch.hpp"
#else
#include <cuda_runtime_api.h>
#endif

namespace py = pybind11;

namespace linattn {

namespace {

std::pair<int, bool> best_schedule_of(Int heads, Int length, Int dim, Int value_dim, bool causal, int multiprocessors) {
    const Schedule best = best_schedule({heads, length, dim, value_dim, causal, multiprocessors});
    return {best.segments, best.relay};
}

#ifndef LINATTN_EMULATED
// Of a GPU: major and minor capability, multiprocessors, the most bytes of shared memory that a block may ask for.
std::array<int, 4> device_attributes(int index) {
    constexpr std::array<cudaDeviceAttr, 4> asked = {cudaDevAttrComputeCapabilityMajor,
                                                     cudaDevAttrComputeCapabilityMinor, cudaDevAttrMultiProcessorCount,
                                                     cudaDevAttrMaxSharedMemoryPerBlockOptin};
    std::array<int, 4> values{};
    for (int i = 0; i < 4; ++i) {
        expect_success("the question for a GPU's attributes", cudaDeviceGetAttribute(&values[i], asked[i], index));
    }
    return values;
}
#endif

}  // namespace

void register_launch(py::module_& module) {
    module.def("shared_bytes", &shared_bytes);
    module.def("step_shared_bytes", &step_shared_bytes);
    module.def("best_schedule", &best_schedule_of);
#ifdef LINATTN_EMULATED
    module.def("set_shared_limit", &emulation::set_shared_limit);
    module.def("set_order", &emulation::set_order);
#else
    module.def("device_attributes", &device_attributes);
#endif
}

}  // namespace linattn
