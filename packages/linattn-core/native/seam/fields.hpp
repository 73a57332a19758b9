// Structs filled from a dict of Python, field by field and by name.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "calls.hpp"

namespace linattn {

namespace fields {

namespace py = pybind11;

inline std::int64_t integer(PyObject* value) {
    const long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) throw py::error_already_set();
    return number;
}

inline void* address(PyObject* value) {
    void* pointer = PyLong_AsVoidPtr(value);
    if (pointer == nullptr && PyErr_Occurred()) throw py::error_already_set();
    return pointer;
}

// What a tuple of so many numbers holds.
inline PyObject** numbers(PyObject* value, Py_ssize_t size) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != size) {
        throw py::type_error("expected a tuple of " + std::to_string(size) + " numbers");
    }
    return &PyTuple_GET_ITEM(value, 0);
}

inline void load(std::int64_t& field, PyObject* value) { field = integer(value); }
inline void load(int& field, PyObject* value) { field = static_cast<int>(integer(value)); }
inline void load(bool& field, PyObject* value) { field = value == Py_True; }
inline void load(double& field, PyObject* value) { field = py::handle(value).cast<double>(); }
// Address, strides of batch, head, position and dim.
inline void load(Tensor4& field, PyObject* value) {
    PyObject** x = numbers(value, 5);
    field = {address(x[0]), integer(x[1]), integer(x[2]), integer(x[3]), integer(x[4])};
}
// Addresses of s and z.
inline void load(State& field, PyObject* value) {
    PyObject** x = numbers(value, 2);
    field = {address(x[0]), address(x[1])};
}
template <class T>
void load(T*& field, PyObject* value) {
    field = static_cast<T*>(address(value));
}
template <class Enum>
std::enable_if_t<std::is_enum_v<Enum>> load(Enum& field, PyObject* value) {
    field = py::handle(value).cast<Enum>();
}

template <class Member>
struct OwnerOf;
template <class Struct, class T>
struct OwnerOf<T Struct::*> {
    using type = Struct;
};

}  // namespace fields

// Sets the field that `member` points to, for a table of fields.
template <auto member>
void set(typename fields::OwnerOf<decltype(member)>::type& call, PyObject* value) {
    fields::load(call.*member, value);
}

// The fields of a struct by name.
template <class Struct>
class FieldTable {
public:
    struct Field {
        const char* name;
        void (*set)(Struct& call, PyObject* value);
        PyObject* interned = nullptr;
    };

    FieldTable(std::initializer_list<Field> table) : table_(table) {
        for (Field& field : table_) field.interned = PyUnicode_InternFromString(field.name);
    }

    // False where the struct has no such field. Names that stand in Python's source are interned.
    bool set(Struct& call, PyObject* name, PyObject* value) const {
        for (const Field& field : table_) {
            if (field.interned != name) continue;
            field.set(call, value);
            return true;
        }
        return false;
    }

private:
    std::vector<Field> table_;
};

// A struct with the fields of a dict, zero where none is named; tables of what it inherits come along.
// Throws TypeError for a name that is in no table.
template <class Struct, class... Tables>
Struct filled(const pybind11::dict& values, const Tables&... tables) {
    Struct call{};
    Py_ssize_t position = 0;
    PyObject *name, *value;
    while (PyDict_Next(values.ptr(), &position, &name, &value)) {
        if ((tables.set(call, name, value) || ...)) continue;
        throw pybind11::type_error("unknown field " + pybind11::repr(name).cast<std::string>());
    }
    return call;
}

}  // namespace linattn
