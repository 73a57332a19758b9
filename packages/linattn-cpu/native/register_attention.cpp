// linear_attention and its step, for Python: addresses and sizes in, nothing out but what was written.
//
// Python has checked shapes, dtypes and devices; here only the address of a tensor is taken.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <vector>

#include "instruction_sets.hpp"
#include "memory.hpp"

namespace py = pybind11;

namespace linattn {

namespace {

using Address = std::uintptr_t;
// Of a tensor: its address and its strides in elements (batch, head, position, dim).
using Strided = std::array<std::int64_t, 5>;
using Numbers = std::vector<std::int64_t>;

template <class T = void>
T* pointer(Address address) {
    return reinterpret_cast<T*>(address);
}

Tensor4 tensor(const Strided& x) {
    return {pointer(static_cast<Address>(x[0])), x[1], x[2], x[3], x[4]};
}

State state(const std::array<Address, 2>& addresses) {
    return {pointer(addresses[0]), pointer(addresses[1])};
}

// What both passes are told: B, H, N, L, D, M, sequences; dtypes of query and value, map; threads.
struct Common {
    Strided query, key, value;
    std::array<std::int64_t, 7> sizes;
    std::array<int, 3> kinds;
    double eps;
    bool causal;
    int threads;

    // Of a tensor (batch, heads, length, dim).
    std::int64_t numbers(std::int64_t length, std::int64_t dim) const {
        return sizes[0] * sizes[1] * length * dim;
    }

    void fill(Attention& call, const Numbers& key_lengths, const Numbers& cu_seqlens) const {
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
        call.key_lengths = key_lengths.empty() ? nullptr : key_lengths.data();
        call.cu_seqlens = cu_seqlens.empty() ? nullptr : cu_seqlens.data();
        call.query_dtype = static_cast<Dtype>(kinds[0]);
        call.value_dtype = static_cast<Dtype>(kinds[1]);
        call.map = static_cast<FeatureMap>(kinds[2]);
        call.eps = eps;
        call.causal = causal;
        call.threads = threads;
    }
};

void attention_forward(const Common& common, const Numbers& key_lengths, const Numbers& cu_seqlens,
                       const std::array<Address, 2>& initial, const std::array<Address, 2>& last, Address out,
                       Address normalizer) {
    AttentionForward call{};
    common.fill(call, key_lengths, cu_seqlens);
    call.initial = state(initial);
    call.last = state(last);
    call.out = pointer(out);
    call.normalizer = pointer(normalizer);
    const py::gil_scoped_release unlocked;
    expect_writes(call.out, common.numbers(call.queries, call.value_dim) * bytes_of(call.value_dtype));
    live_kernels().attention_forward(call);
}

// `gradients` are those of query, key and value; `kept` are out, normalizer and scratch.
void attention_backward(const Common& common, const Numbers& key_lengths, const Numbers& cu_seqlens,
                        const Strided& grad_out, const std::array<Address, 2>& grad_last,
                        const std::array<Address, 2>& given, const std::array<Address, 3>& kept,
                        const std::array<Address, 3>& gradients, const std::array<Address, 2>& grad_initial) {
    AttentionBackward call{};
    common.fill(call, key_lengths, cu_seqlens);
    call.grad_out = tensor(grad_out);
    call.grad_last = state(grad_last);
    call.state = state(given);
    call.out = pointer(kept[0]);
    call.normalizer = pointer(kept[1]);
    call.scratch = pointer(kept[2]);
    call.grad_query = pointer(gradients[0]);
    call.grad_key = pointer(gradients[1]);
    call.grad_value = pointer(gradients[2]);
    call.grad_initial = state(grad_initial);
    const py::gil_scoped_release unlocked;
    expect_writes(call.grad_query, common.numbers(call.queries, call.dim) * bytes_of(call.query_dtype));
    expect_writes(call.grad_key, common.numbers(call.keys, call.dim) * bytes_of(call.query_dtype));
    expect_writes(call.grad_value, common.numbers(call.keys, call.value_dim) * bytes_of(call.value_dtype));
    live_kernels().attention_backward(call);
}

void step(const Strided& query, const Strided& key, const Strided& value, const Strided& s, const Strided& z,
          Address out, const std::array<std::int64_t, 4>& sizes, const std::array<int, 3>& kinds, double eps,
          int threads) {
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
    call.eps = eps;
    call.threads = threads;
    const py::gil_scoped_release unlocked;
    live_kernels().step(call);
}

}  // namespace

void register_attention(py::module_& module) {
    py::class_<Common>(module, "Call")
        .def(py::init([](const Strided& query, const Strided& key, const Strided& value,
                         const std::array<std::int64_t, 7>& sizes, const std::array<int, 3>& kinds, double eps,
                         bool causal, int threads) {
            return Common{query, key, value, sizes, kinds, eps, causal, threads};
        }));
    module.def("attention_forward", &attention_forward);
    module.def("attention_backward", &attention_backward);
    module.def("step", &step);
}

}  // namespace linattn
