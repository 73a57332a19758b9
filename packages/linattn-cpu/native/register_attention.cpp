// linear_attention and its step, for Python: calls as structs with named fields, nothing out but what was written.
//
// Python has checked shapes, dtypes and devices; here only the address of a tensor is taken.
#include <pybind11/pybind11.h>

#include "fields.hpp"
#include "instruction_sets.hpp"
#include "memory.hpp"

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
        {"threads", set<&Attention::threads>},
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
        {"scratch", set<&AttentionBackward::scratch>},
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
        {"threads", set<&Step::threads>},
    };
    return table;
}

std::int64_t bytes(const Attention& call, std::int64_t length, std::int64_t dim, Dtype dtype) {
    return call.batch * call.heads * length * dim * bytes_of(dtype);
}

void attention_forward(const py::dict& fields) {
    const auto call = filled<AttentionForward>(fields, attention_fields(), forward_fields());
    const py::gil_scoped_release unlocked;
    expect_writes(call.out, bytes(call, call.queries, call.value_dim, call.value_dtype));
    live_kernels().attention_forward(call);
}

void attention_backward(const py::dict& fields) {
    const auto call = filled<AttentionBackward>(fields, attention_fields(), backward_fields());
    const py::gil_scoped_release unlocked;
    expect_writes(call.grad_query, bytes(call, call.queries, call.dim, call.query_dtype));
    expect_writes(call.grad_key, bytes(call, call.keys, call.dim, call.query_dtype));
    expect_writes(call.grad_value, bytes(call, call.keys, call.value_dim, call.value_dtype));
    live_kernels().attention_backward(call);
}

void step(const py::dict& fields) {
    const auto call = filled<Step>(fields, step_fields());
    const py::gil_scoped_release unlocked;
    live_kernels().step(call);
}

}  // namespace

void register_attention(py::module_& module) {
    py::enum_<Dtype>(module, "Dtype")
        .value("float64", Dtype::float64)
        .value("float32", Dtype::float32)
        .value("bfloat16", Dtype::bfloat16)
        .value("float16", Dtype::float16);
    py::enum_<FeatureMap>(module, "FeatureMap")
        .value("identity", FeatureMap::identity)
        .value("relu", FeatureMap::relu)
        .value("elu", FeatureMap::elu);
    module.def("attention_forward", &attention_forward);
    module.def("attention_backward", &attention_backward);
    module.def("step", &step);
}

}  // namespace linattn
