// linear_attention and its step, for Python: addresses and sizes in, nothing out but what was written.
//
// Python has checked shapes, dtypes and devices; here only the address of a tensor is taken. All of them are on the
// device, those of lengths too.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <utility>

#include "launch_error.hpp"
#include "linattn/calls.h"

namespace py = pybind11;

namespace linattn {

namespace {

using Address = std::uintptr_t;
// Of a tensor: its address and its strides in elements (batch, head, position, dim).
using Strided = std::array<std::int64_t, 5>;
// Of a state: the addresses of s and z, 0 where there is none.
using Pair = std::array<Address, 2>;

template <class T = void>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

Tensor4 tensor(const Strided& x) { return {pointer(static_cast<Address>(x[0])), x[1], x[2], x[3], x[4]}; }

State state(const Pair& addresses) { return {pointer<float>(addresses[0]), pointer<float>(addresses[1])}; }

// What both passes are told: B, H, N, L, D, M, sequences; dtypes of query and value, map, precision; addresses of
// key_lengths and cu_seqlens; segments, and whether they are a relay.
Attention common(const Strided& query, const Strided& key, const Strided& value,
                 const std::array<std::int64_t, 7>& sizes, const std::array<int, 4>& kinds,
                 const std::array<Address, 2>& lengths, double eps, bool causal,
                 const std::pair<int, bool>& schedule) {
    Attention call{};
    call.query = tensor(query);
    call.key = tensor(key);
    call.value = tensor(value);
    call.batch = sizes[0];
    call.heads = sizes[1];
    call.queries = sizes[2];
    call.keys = sizes[3];
    call.dim = sizes[4];
    call.value_dim = sizes[5];
    call.sequences = sizes[6];
    call.query_dtype = static_cast<Dtype>(kinds[0]);
    call.value_dtype = static_cast<Dtype>(kinds[1]);
    call.map = static_cast<FeatureMap>(kinds[2]);
    call.precision = static_cast<Precision>(kinds[3]);
    call.key_lengths = pointer<const Int>(lengths[0]);
    call.cu_seqlens = pointer<const Int>(lengths[1]);
    call.eps = static_cast<float>(eps);
    call.causal = causal;
    call.schedule = {schedule.first, schedule.second};
    return call;
}

// The call of one pass, which begins as what both are told.
template <class Pass>
Pass begun(const Attention& common, Address workspace, Address stream) {
    Pass call{};
    static_cast<Attention&>(call) = common;
    call.workspace = pointer(workspace);
    call.stream = pointer(stream);
    return call;
}

Int forward_workspace(const Attention& common) { return workspace_bytes(begun<AttentionForward>(common, 0, 0)); }

Int backward_workspace(const Attention& common) { return workspace_bytes(begun<AttentionBackward>(common, 0, 0)); }

void attention_forward_of(const Attention& common, const Pair& initial, const Pair& last, Address out,
                          Address normalizer, Address workspace, Address stream) {
    auto call = begun<AttentionForward>(common, workspace, stream);
    call.initial = state(initial);
    call.last = state(last);
    call.out = pointer(out);
    call.normalizer = pointer<float>(normalizer);
    const py::gil_scoped_release unlocked;
    expect_launched(attention_forward(call));
}

// `gradients` are those of query, key and value; `kept` are out and normalizer.
void attention_backward_of(const Attention& common, const Strided& grad_out, const Pair& grad_last,
                           const Pair& given, const std::array<Address, 2>& kept,
                           const std::array<Address, 3>& gradients, const Pair& grad_initial, Address workspace,
                           Address stream) {
    auto call = begun<AttentionBackward>(common, workspace, stream);
    call.grad_out = tensor(grad_out);
    call.grad_last = state(grad_last);
    call.state = state(given);
    call.out = pointer<const void>(kept[0]);
    call.normalizer = pointer<const float>(kept[1]);
    call.grad_query = pointer(gradients[0]);
    call.grad_key = pointer(gradients[1]);
    call.grad_value = pointer(gradients[2]);
    call.grad_initial = state(grad_initial);
    const py::gil_scoped_release unlocked;
    expect_launched(attention_backward(call));
}

void step_of(const Strided& query, const Strided& key, const Strided& value, const Strided& s, const Strided& z,
             Address out, const std::array<std::int64_t, 4>& sizes, const std::array<int, 3>& kinds, double eps,
             Address stream) {
    Step call{};
    call.query = tensor(query);
    call.key = tensor(key);
    call.value = tensor(value);
    call.s = tensor(s);
    call.z = tensor(z);
    call.out = pointer(out);
    call.batch = sizes[0];
    call.heads = sizes[1];
    call.dim = sizes[2];
    call.value_dim = sizes[3];
    call.query_dtype = static_cast<Dtype>(kinds[0]);
    call.value_dtype = static_cast<Dtype>(kinds[1]);
    call.map = static_cast<FeatureMap>(kinds[2]);
    call.eps = static_cast<float>(eps);
    call.stream = pointer(stream);
    const py::gil_scoped_release unlocked;
    expect_launched(step(call));
}

}  // namespace

void register_attention(py::module_& module) {
    // Local, as a process may hold two modules: one that runs on GPUs, and the emulated one of the tests.
    py::class_<Attention>(module, "Call", py::module_local()).def(py::init(&common));
    module.def("forward_workspace", &forward_workspace);
    module.def("backward_workspace", &backward_workspace);
    module.def("attention_forward", &attention_forward_of);
    module.def("attention_backward", &attention_backward_of);
    module.def("step", &step_of);
}

}  // namespace linattn
