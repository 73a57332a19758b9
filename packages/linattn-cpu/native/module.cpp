// The Python module; the bindings are in one file per topic.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "instruction_sets.hpp"

namespace py = pybind11;

namespace linattn {

void register_attention(py::module_& module);
void register_decoder(py::module_& module);
void register_memory(py::module_& module);

namespace {

std::vector<std::string> instruction_sets() {
    std::vector<std::string> names;
    for (const Kernels* kernels : usable_kernels()) names.push_back(kernels->instruction_set);
    return names;
}

std::int64_t fused_multiply_adds(int threads, std::int64_t steps) {
    const py::gil_scoped_release unlocked;
    return live_kernels().fused_multiply_adds(threads, steps);
}

std::string instruction_set() { return live_kernels().instruction_set; }

}  // namespace
}  // namespace linattn

PYBIND11_MODULE(_native, module) {
    using namespace linattn;
    module.attr("__version__") = LINATTN_VERSION;
    module.def("instruction_sets", &instruction_sets);
    module.def("machine_sets", &machine_sets);
    module.def("instruction_set", &instruction_set);
    module.def("use_instruction_set", &use_instruction_set);
    module.def("fused_multiply_adds", &fused_multiply_adds);
#ifdef _OPENMP
    module.attr("threading") = "OpenMP";
#else
    module.attr("threading") = "std::thread";
#endif
    register_attention(module);
    register_decoder(module);
    register_memory(module);
}
