// The Python module: one file of bindings a topic, and the enumerations, which it has without kernels too.
#include <pybind11/pybind11.h>

#include "linattn/calls.h"

namespace py = pybind11;

namespace linattn {

#ifdef LINATTN_KERNELS
void register_attention(py::module_& module);
void register_launch(py::module_& module);
#endif

namespace {

void register_enumerations(py::module_& module) {
    // Local, as a process may hold two modules: one that runs on GPUs, and the emulated one of the tests.
    py::enum_<Dtype>(module, "Dtype", py::module_local())
        .value("float32", Dtype::float32)
        .value("bfloat16", Dtype::bfloat16)
        .value("float16", Dtype::float16);
    py::enum_<FeatureMap>(module, "FeatureMap", py::module_local())
        .value("identity", FeatureMap::identity)
        .value("relu", FeatureMap::relu)
        .value("elu", FeatureMap::elu);
    py::enum_<Precision>(module, "Precision", py::module_local())
        .value("highest", Precision::highest)
        .value("high", Precision::high);
}

}  // namespace

}  // namespace linattn

PYBIND11_MODULE(LINATTN_MODULE, module) {
    module.attr("__version__") = LINATTN_VERSION;
    module.attr("built_with") = LINATTN_BUILT_WITH;
    linattn::register_enumerations(module);
#ifdef LINATTN_KERNELS
    linattn::register_attention(module);
    linattn::register_launch(module);
#endif
}
