// The Python bindings of linear_attention and its step. They fill structs from dicts, write results through addresses,
// and return nothing.
//
// Python has checked shapes, dtypes and devices.
#include <pybind11/pybind11.h>

#include "calls.hpp"
#include "instruction_sets.hpp"
#include "memory.hpp"
#include "seam/call_fields.hpp"  // after calls.hpp

namespace py = pybind11;

namespace linattn {

namespace {

// The fields that are not in the shared tables.
const FieldTable<Attention>& own_fields() {
    static const FieldTable<Attention> table{
        {"mask", set<&Attention::mask>},
        {"log_decay", set<&Attention::log_decay>},
        {"threads", set<&Attention::threads>},
    };
    return table;
}

const FieldTable<AttentionBackward>& own_backward_fields() {
    static const FieldTable<AttentionBackward> table{
        {"grad_log_decay", set<&AttentionBackward::grad_log_decay>},
        {"scratch", set<&AttentionBackward::scratch>},
    };
    return table;
}

const FieldTable<Step>& own_step_fields() {
    static const FieldTable<Step> table{
        {"log_decay", set<&Step::log_decay>},
        {"threads", set<&Step::threads>},
    };
    return table;
}

std::int64_t query_bytes(const Attention& call, std::int64_t dim, Dtype dtype) {
    return call.batch * call.heads * call.queries * dim * bytes_of(dtype);
}

std::int64_t key_bytes(const Attention& call, std::int64_t dim, Dtype dtype) {
    return call.batch * call.kv_heads * call.keys * dim * bytes_of(dtype);
}

void attention_forward(const py::dict& fields) {
    auto call = filled<AttentionForward>(fields, attention_fields(), forward_fields(), own_fields());
    const py::gil_scoped_release unlocked;
    // The kernels always write the normalizer; a call without gradients has no tensor for it.
    const std::int64_t widest = call.normalizer != nullptr ? 0 : query_bytes(call, 1, Dtype::float64);
    const Scratch normalizer(widest);
    if (call.normalizer == nullptr) call.normalizer = normalizer.get();
    expect_writes(call.out, query_bytes(call, call.value_dim, call.value_dtype), call.threads);
    live_kernels().attention_forward(call);
}

void attention_backward(const py::dict& fields) {
    const auto call =
        filled<AttentionBackward>(fields, attention_fields(), backward_fields(), own_fields(), own_backward_fields());
    const py::gil_scoped_release unlocked;
    expect_writes(call.grad_query, query_bytes(call, call.dim, call.query_dtype), call.threads);
    expect_writes(call.grad_key, key_bytes(call, call.dim, call.query_dtype), call.threads);
    expect_writes(call.grad_value, key_bytes(call, call.value_dim, call.value_dtype), call.threads);
    live_kernels().attention_backward(call);
}

void step(const py::dict& fields) {
    const auto call = filled<Step>(fields, step_fields(), own_step_fields());
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
