// linear_attention and its step, for Python: calls as structs with named fields, nothing out but what was written.
//
// Python has checked shapes, dtypes and devices; here only the address of a tensor is taken. All of them are on the
// device, those of lengths too.
#include <pybind11/pybind11.h>

#include "fields.hpp"
#include "launch_error.hpp"
#include "linattn/calls.h"

namespace py = pybind11;

namespace linattn {

namespace {

// What both passes are told.
const FieldTable<Attention>& attention_fields() {
    static const FieldTable<Attention> table{
        {"query", set<&Attention::query>},
        {"key", set<&Attention::key>},
        {"value", set<&Attention::value>},
        {"batch", set<&Attention::batch>},
        {"heads", set<&Attention::heads>},
        {"queries", set<&Attention::queries>},
        {"keys", set<&Attention::keys>},
        {"dim", set<&Attention::dim>},
        {"value_dim", set<&Attention::value_dim>},
        {"key_lengths", set<&Attention::key_lengths>},
        {"cu_seqlens", set<&Attention::cu_seqlens>},
        {"sequences", set<&Attention::sequences>},
        {"query_dtype", set<&Attention::query_dtype>},
        {"value_dtype", set<&Attention::value_dtype>},
        {"map", set<&Attention::map>},
        {"eps", set<&Attention::eps>},
        {"causal", set<&Attention::causal>},
        {"precision", set<&Attention::precision>},
        {"segments", [](Attention& call, PyObject* value) { fields::load(call.schedule.segments, value); }},
        {"relay", [](Attention& call, PyObject* value) { fields::load(call.schedule.relay, value); }},
        {"workspace", set<&Attention::workspace>},
        {"stream", set<&Attention::stream>},
    };
    return table;
}

const FieldTable<AttentionForward>& forward_fields() {
    static const FieldTable<AttentionForward> table{
        {"initial", set<&AttentionForward::initial>},
        {"last", set<&AttentionForward::last>},
        {"out", set<&AttentionForward::out>},
        {"normalizer", set<&AttentionForward::normalizer>},
    };
    return table;
}

const FieldTable<AttentionBackward>& backward_fields() {
    static const FieldTable<AttentionBackward> table{
        {"grad_out", set<&AttentionBackward::grad_out>},
        {"grad_last", set<&AttentionBackward::grad_last>},
        {"state", set<&AttentionBackward::state>},
        {"out", set<&AttentionBackward::out>},
        {"normalizer", set<&AttentionBackward::normalizer>},
        {"grad_query", set<&AttentionBackward::grad_query>},
        {"grad_key", set<&AttentionBackward::grad_key>},
        {"grad_value", set<&AttentionBackward::grad_value>},
        {"grad_initial", set<&AttentionBackward::grad_initial>},
    };
    return table;
}

const FieldTable<Step>& step_fields() {
    static const FieldTable<Step> table{
        {"query", set<&Step::query>},
        {"key", set<&Step::key>},
        {"value", set<&Step::value>},
        {"s", set<&Step::s>},
        {"z", set<&Step::z>},
        {"out", set<&Step::out>},
        {"batch", set<&Step::batch>},
        {"heads", set<&Step::heads>},
        {"dim", set<&Step::dim>},
        {"value_dim", set<&Step::value_dim>},
        {"query_dtype", set<&Step::query_dtype>},
        {"value_dtype", set<&Step::value_dtype>},
        {"map", set<&Step::map>},
        {"eps", set<&Step::eps>},
        {"stream", set<&Step::stream>},
    };
    return table;
}

AttentionForward forward_of(const py::dict& fields) {
    return filled<AttentionForward>(fields, attention_fields(), forward_fields());
}

AttentionBackward backward_of(const py::dict& fields) {
    return filled<AttentionBackward>(fields, attention_fields(), backward_fields());
}

void run_forward(const py::dict& fields) {
    const AttentionForward call = forward_of(fields);
    const py::gil_scoped_release unlocked;
    expect_launched(attention_forward(call));
}

void run_backward(const py::dict& fields) {
    const AttentionBackward call = backward_of(fields);
    const py::gil_scoped_release unlocked;
    expect_launched(attention_backward(call));
}

void run_step(const py::dict& fields) {
    const auto call = filled<Step>(fields, step_fields());
    const py::gil_scoped_release unlocked;
    expect_launched(step(call));
}

}  // namespace

void register_attention(py::module_& module) {
    module.def("forward_workspace", [](const py::dict& fields) { return workspace_bytes(forward_of(fields)); });
    module.def("backward_workspace", [](const py::dict& fields) { return workspace_bytes(backward_of(fields)); });
    module.def("attention_forward", &run_forward);
    module.def("attention_backward", &run_backward);
    module.def("step", &run_step);
}

}  // namespace linattn
