// Which products the lean kernels compute.
#include "lean_launch.h"

namespace linattn {

namespace {

// Rows that are copied 16 bytes at a time, and of which those of a chunk lie within 2^31 bytes.
bool is_lean(const Operand& operand) {
    const Int stride = operand.tensor.position;
    return operand.dtype == Dtype::bfloat16 && operand.vectors && stride >= 0 &&
           stride < (Int(1) << 31) / (2 * segment_grain);
}
bool is_lean(const Result& result) { return result.dtype == Dtype::bfloat16 && result.vectors; }

bool has_lean_keys(const Product& call) {
    return is_lean(call.key) && is_lean(call.value) && call.key.of_keys && call.value.of_keys;
}

bool has_lean_rows(const Product& call) {
    return is_lean(call.row) && call.finish == Finish::divide && is_lean(call.result);
}

// Positions are counted to two chunks past the end.
bool has_lean_lengths(const Product& call) {
    constexpr Int longest = (Int(1) << 31) - 4 * segment_grain;
    return call.queries < longest && call.keys < longest;
}

// The walks of causal gradients.
bool is_query_pass(const Product& call) {
    return call.bias == Bias::of_row && call.reads && call.sums && is_lean(call.row) && has_lean_keys(call) &&
           is_lean(call.origin) && (!call.normalize || is_lean(call.output)) && is_lean(call.result);
}
bool is_pair(const Product& call) {
    return call.pair && call.sums && is_lean(call.row) && is_lean(call.second_row) && is_lean(call.key) &&
           is_lean(call.value) && is_lean(call.result) && is_lean(call.second_result);
}
bool is_query_sums(const Product& call) {
    return call.column == Column::bias && !call.reads && is_lean(call.key) && is_lean(call.value);
}

}  // namespace

bool is_lean_width(Int dim, Int value_dim) {
    if (dim != value_dim || (dim != 64 && dim != 128)) return false;
    return shared_limit() >= (dim == 64 ? WidestLean<64>::shared_bytes : WidestLean<128>::shared_bytes);
}

bool is_lean(const Product& call) {
    if (call.pair || call.backwards || call.mask != nullptr || call.bias != Bias::none || call.column != Column::ones)
        return false;
    if ((call.sums && !has_lean_keys(call)) || (call.reads && !has_lean_rows(call))) return false;
    return has_lean_lengths(call) && is_lean_width(call.sums ? call.key.width : call.row.width, call.value.width);
}

Status launch_lean(const Product& call, void* stream) {
    return call.value.width == 64 ? launch_lean_64(call, stream) : launch_lean_128(call, stream);
}

bool has_lean_gradients(Int dim, Int value_dim) {
    return dim == gradient_width && value_dim == gradient_width && shared_limit() >= WidestGradient::shared_bytes;
}

bool is_lean_gradient(const Product& call) {
    if (!has_lean_lengths(call) || !has_lean_gradients(call.key.width, call.value.width)) return false;
    if (is_query_sums(call)) return true;
    return call.mask == nullptr && call.queries == call.keys && (is_query_pass(call) || is_pair(call));
}

Status launch_lean_gradient(const Product& call, void* stream) {
    if (!call.reads) return launch_lean_query_sums(call, stream);
    return call.pair ? launch_lean_pair(call, stream) : launch_lean_queries(call, stream);
}

Status resident_lean(Int width, int* blocks) {
    return width == 64 ? resident_lean_64(blocks) : resident_lean_128(blocks);
}

}  // namespace linattn
