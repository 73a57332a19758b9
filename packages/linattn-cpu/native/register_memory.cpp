// The Python binding of the memory of large results: an object with Python's buffer protocol, from which torch makes a
// tensor.
#include <pybind11/pybind11.h>

#include "cached_memory.hpp"

namespace py = pybind11;

namespace linattn {

void register_memory(py::module_& module) {
    py::class_<CachedMemory>(module, "CachedMemory", py::buffer_protocol())
        .def(py::init<std::int64_t>(), py::arg("bytes"))
        .def_buffer([](CachedMemory& memory) {
            return py::buffer_info(static_cast<std::uint8_t*>(memory.get()), memory.bytes());
        })
        .def_static("kept", &CachedMemory::kept)
        .def_static("empty", &CachedMemory::empty)
        .attr("most_kept") = CachedMemory::kMostKept;
}

}  // namespace linattn
