// linear_attention and its step, for Python: calls as structs with named fields, nothing out but what was written.
//
// Python has checked shapes, dtypes and devices; here only the address of a tensor is taken. All of them are on the
// device, those of lengths too.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <tuple>

#include "launch_error.hpp"
#include "linattn/calls.h"
#include "seam/call_fields.hpp"  // after calls.h

namespace py = pybind11;

namespace linattn {

namespace {

// What the shared tables do not have.
const FieldTable<Attention>& own_fields() {
    static const FieldTable<Attention> table{
        {"mask", set<&Attention::mask>},
        {"precision", set<&Attention::precision>},
        {"segments", [](Attention& call, PyObject* value) { load(call.segments, value); }},
        {"whole", set<&Attention::whole>},
        {"workspace", set<&Attention::workspace>},
        {"stream", set<&Attention::stream>},
    };
    return table;
}

const FieldTable<Step>& own_step_fields() {
    static const FieldTable<Step> table{
        {"slots", set<&Step::slots>},
        {"stream", set<&Step::stream>},
    };
    return table;
}

AttentionForward forward_of(const py::dict& fields) {
    return filled<AttentionForward>(fields, attention_fields(), forward_fields(), own_fields());
}

AttentionBackward backward_of(const py::dict& fields) {
    return filled<AttentionBackward>(fields, attention_fields(), backward_fields(), own_fields());
}

// Segments, what is whole, and bytes of the workspace; where `segments` are given, all sequences are cut so.
template <class Call>
std::tuple<int, Int, Int> plan_call(Call call, int segments, int multiprocessors) {
    Plan plan = {segments, 0};
    if (segments == 0) expect_success("the plan", best_plan(call, multiprocessors, &plan));
    call.segments = plan.segments;
    call.whole = plan.whole;
    return {plan.segments, plan.whole, workspace_bytes(call)};
}

std::tuple<int, Int, Int> plan_forward(const py::dict& fields, int segments, int multiprocessors) {
    return plan_call(forward_of(fields), segments, multiprocessors);
}

std::tuple<int, Int, Int> plan_backward(const py::dict& fields, int segments, int multiprocessors) {
    return plan_call(backward_of(fields), segments, multiprocessors);
}

void run_forward(const py::dict& fields) {
    const AttentionForward call = forward_of(fields);
    const py::gil_scoped_release unlocked;
    expect_success("the launch", attention_forward(call));
}

void run_backward(const py::dict& fields) {
    const AttentionBackward call = backward_of(fields);
    const py::gil_scoped_release unlocked;
    expect_success("the launch", attention_backward(call));
}

void run_step(const py::dict& fields) {
    const auto call = filled<Step>(fields, step_fields(), own_step_fields());
    const py::gil_scoped_release unlocked;
    expect_success("the launch", step(call));
}

}  // namespace

void register_attention(py::module_& module) {
    module.def("plan_forward", &plan_forward);
    module.def("plan_backward", &plan_backward);
    module.def("attention_forward", &run_forward);
    module.def("attention_backward", &run_backward);
    module.def("step", &run_step);
}

}  // namespace linattn
