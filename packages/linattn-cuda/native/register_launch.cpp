// What a caller asks before a launch: what the GPU offers, shared memory, segments.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "launch_error.hpp"
#include "linattn/calls.h"

#if defined(LINATTN_EMULATED)
#include "emulation/launch.hpp"
#elif defined(LINATTN_DRIVER)
#include "driver/api.hpp"
#include "driver/launch.hpp"
#else
#include <cuda_runtime_api.h>
#endif

namespace py = pybind11;

namespace linattn {

namespace {

int resident_blocks_of(Int width, Dtype query_dtype, Dtype value_dtype, Precision precision, bool derivatives) {
    int blocks = 0;
    const Status status = resident_blocks(width, query_dtype, value_dtype, precision, derivatives, &blocks);
    expect_success("counting the resident blocks", status);
    return blocks;
}

std::vector<std::string> kernel_names() {
    std::vector<std::string> names;
    for (int i = 0; kernel_name(i) != nullptr; ++i) names.emplace_back(kernel_name(i));
    return names;
}

#if defined(LINATTN_DRIVER)
int attribute_of(int* value, int attribute, int index) {
    int device = 0;
    if (const int error = driver::api().cuDeviceGet(&device, index)) return error;
    return driver::api().cuDeviceGetAttribute(value, attribute, device);
}

int make_current_device(int index) { return driver::make_current(index); }

// Of the newest CUDA that the driver knows: 12040 is 12.4.
int driver_version() {
    int version = 0;
    expect_success("reading the driver's version", driver::api().cuDriverGetVersion(&version));
    return version;
}

// Takes a function from a kernel's name and an architecture to (code, the kernel's name in it), as bytes and str.
void set_compiler(py::function compile) {
    // Never given back: launches may come while Python ends.
    const py::handle kept = compile.release();
    driver::set_compiler([kept](const std::string& kernel, const std::string& architecture) {
        const py::gil_scoped_acquire locked;
        auto [code, symbol] = kept(kernel, architecture).cast<std::pair<std::string, std::string>>();
        return driver::Image{std::move(code), std::move(symbol)};
    });
}
#elif !defined(LINATTN_EMULATED)
int attribute_of(int* value, int attribute, int index) {
    return cudaDeviceGetAttribute(value, static_cast<cudaDeviceAttr>(attribute), index);
}

int make_current_device(int index) { return cudaSetDevice(index); }
#endif

#ifndef LINATTN_EMULATED
// Of a GPU: major and minor capability, multiprocessors, the most bytes of shared memory that a block may ask for.
std::array<int, 4> device_attributes(int index) {
    constexpr std::array<int, 4> asked = {75, 76, 16, 97};  // the numbers of these in the driver and in the runtime
    std::array<int, 4> values{};
    for (int i = 0; i < 4; ++i) {
        expect_success("reading a GPU's attributes", attribute_of(&values[i], asked[i], index));
    }
    return values;
}

void make_current(int index) { expect_success("the change of this thread's GPU", make_current_device(index)); }
#endif

}  // namespace

void register_launch(py::module_& module) {
    module.def("kernel_names", &kernel_names);
    module.def("shared_bytes", &shared_bytes);
    module.def("step_shared_bytes", &step_shared_bytes);
    // Without Python's lock, as they may wait for a thread that compiles, which needs it.
    module.def("resident_blocks", &resident_blocks_of, py::call_guard<py::gil_scoped_release>());
#ifdef LINATTN_EMULATED
    module.def("set_shared_limit", &emulation::set_shared_limit);
    module.def("set_order", &emulation::set_order);
    module.def("take_copied_bytes", &emulation::take_copied_bytes);
    module.def("take_products", &emulation::take_products);
#else
    module.def("device_attributes", &device_attributes);
    module.def("make_current", &make_current, py::call_guard<py::gil_scoped_release>());
#endif
#ifdef LINATTN_DRIVER
    module.def("use_library", &driver::use_library);
    module.def("driver_version", &driver_version);
    module.def("set_compiler", &set_compiler);
#endif
}

}  // namespace linattn
