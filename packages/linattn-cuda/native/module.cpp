// The Python module: one file of bindings a topic.
#include <pybind11/pybind11.h>

namespace py = pybind11;

namespace linattn {

#ifdef LINATTN_KERNELS
void register_attention(py::module_& module);
void register_launch(py::module_& module);
#endif

}  // namespace linattn

PYBIND11_MODULE(LINATTN_MODULE, module) {
    module.attr("__version__") = LINATTN_VERSION;
    module.attr("built_with") = LINATTN_BUILT_WITH;
#ifdef LINATTN_KERNELS
    linattn::register_attention(module);
    linattn::register_launch(module);
#endif
}
