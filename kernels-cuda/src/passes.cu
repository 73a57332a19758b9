#include "passes.h"

#include "linattn/device/scan.cuh"

namespace linattn {

StateView SegmentStates::view() const {
    StateView view{};
    view.matrix = data;
    view.vector = data + dim * value_dim;
    view.segment = view.vector_segment = numbers();
    view.head = view.vector_head = segments * numbers();
    view.sequence = view.vector_sequence = heads * segments * numbers();
    view.row = value_dim;
    view.column = 1;
    view.readers = readers;
    return view;
}

StateView view_of(const Attention& call, const State& state, Readers readers) {
    const Int heads = readers == Readers::own ? call.heads : call.kv_heads;
    StateView view{};
    view.matrix = state.s;
    view.vector = state.z;
    view.head = call.dim * call.value_dim;
    view.sequence = heads * view.head;
    view.row = call.value_dim;
    view.column = 1;
    view.vector_head = call.dim;
    view.vector_sequence = heads * call.dim;
    view.readers = readers;
    return view;
}

bool exists(const State& state) { return state.s != nullptr || state.z != nullptr; }

int group_of(const Attention& call) { return call.kv_heads == 0 ? 1 : static_cast<int>(call.heads / call.kv_heads); }

StateView transposed(const StateView& view) {
    StateView result = view;
    result.row = view.column;
    result.column = view.row;
    return result;
}

namespace {

Operand operand(const Tensor4& tensor, Int width, Dtype dtype) {
    Operand result{};
    result.tensor = tensor;
    result.width = width;
    result.dtype = dtype;
    result.group = 1;
    result.vectors = copies_vectors(tensor, dtype);
    return result;
}

}  // namespace

Operand queries_of(const Attention& call) {
    Operand result = operand(call.query, call.dim, call.query_dtype);
    result.map = call.map;
    return result;
}

Operand keys_of(const Attention& call) {
    Operand result = operand(call.key, call.dim, call.query_dtype);
    result.map = call.map;
    result.group = group_of(call);
    result.of_keys = true;
    return result;
}

Operand values_of(const Attention& call) {
    Operand result = operand(call.value, call.value_dim, call.value_dtype);
    result.group = group_of(call);
    result.of_keys = true;
    return result;
}

Operand output_of(const AttentionBackward& call) {
    const Int row = call.value_dim, head = call.queries * row;
    // It is read only.
    const Tensor4 output = {const_cast<void*>(call.out), call.heads * head, head, row, 1};
    return operand(output, call.value_dim, call.value_dtype);
}

Operand gradient_of(const AttentionBackward& call) {
    Operand result = operand(call.grad_out, call.value_dim, call.value_dtype);
    result.divided = call.normalize;
    return result;
}

Product product_of(const Attention& call) {
    Product product{};
    product.heads = call.heads;
    product.group = group_of(call);
    product.sequences = call.sequences;
    product.queries = call.queries;
    product.keys = call.keys;
    product.key_lengths = call.key_lengths;
    product.mask = call.mask;
    product.cu_seqlens = call.cu_seqlens;
    product.segments = product.launched_segments = call.segments;
    product.eps = call.eps;
    return product;
}

Product sums_of_keys(const Attention& call) {
    Product product = product_of(call);
    product.heads = call.kv_heads;
    product.sums = true;
    product.key = keys_of(call);
    product.value = values_of(call);
    product.group = product.key.group = product.value.group = 1;
    product.column = Column::ones;
    return product;
}

Launches& Launches::product(const Product& product) {
    if (status_.error != 0 || product.sequences * product.heads == 0) return *this;
    switch (parts_of(call_.query_dtype, call_.value_dtype, call_.precision)) {
        case 1: status_ = start_product_1(product, start_); break;
        case 2: status_ = start_product_2(product, start_); break;
        default: status_ = start_product_3(product, start_);
    }
    return *this;
}

Launches& Launches::scan(const SegmentStates& states, const State& first, const State& last, bool backwards) {
    const Int blocks = (states.numbers() + scan_threads - 1) / scan_threads * call_.sequences * states.heads;
    if (status_.error != 0 || blocks == 0) return *this;
    const int group = states.readers == Readers::own ? group_of(call_) : 1;
    const Int matrix = states.dim * states.value_dim;
    const Scan sums = {states.data, first, last, matrix, states.dim, group, states.segments, backwards};
    status_ = LINATTN_LAUNCH("scan", linattn::scan, blocks, 1, scan_threads, 0, start_, sums);
    return *this;
}

Result result_of(void* data, Int width, Dtype dtype) {
    const Int bytes = dtype == Dtype::float32 ? 4 : 2;
    return {data, width, dtype, reinterpret_cast<unsigned long long>(data) % 16 == 0 && width * bytes % 16 == 0};
}

}  // namespace linattn
