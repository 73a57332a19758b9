// Fills structs from a Python dict, field by field and by name; linattn_core/native.py makes the dicts.
#pragma once

#include <pybind11/pybind11.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace linattn {

// The items of a tuple of `size` numbers.
inline PyObject** numbers(PyObject* value, Py_ssize_t size) {
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != size) {
        throw pybind11::type_error("expected a tuple of " + std::to_string(size) + " numbers");
    }
    return &PyTuple_GET_ITEM(value, 0);
}

// Numbers, addresses, enumerators; structs have overloads of their own.
template <class T>
void load(T& field, PyObject* value) {
    if constexpr (std::is_same_v<T, bool>) {
        field = value == Py_True;
    } else if constexpr (std::is_integral_v<T>) {
        field = static_cast<T>(PyLong_AsLongLong(value));
        if (field == -1 && PyErr_Occurred()) throw pybind11::error_already_set();
    } else if constexpr (std::is_pointer_v<T>) {
        field = static_cast<T>(PyLong_AsVoidPtr(value));
        if (field == nullptr && PyErr_Occurred()) throw pybind11::error_already_set();
    } else {
        field = pybind11::handle(value).cast<T>();
    }
}
template <class T>
void load(std::vector<T>& field, PyObject* value) {
    for (const pybind11::handle item : pybind11::handle(value)) load(field.emplace_back(), item.ptr());
}
template <class T>
void load(std::optional<T>& field, PyObject* value) {
    if (value != Py_None) load(field.emplace(), value);
}

// Sets the field that `member` points to, for a table of fields.
template <auto member>
constexpr auto set = [](auto& call, PyObject* value) { load(call.*member, value); };

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

    // False where the struct has no such field. Compares pointers: names in Python source code are interned.
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

// A struct with the fields of a dict; other fields are zero. `tables` are those of the struct and of its bases.
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
