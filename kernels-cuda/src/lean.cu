// Which products the lean kernels compute.
#include "lean_launch.h"

namespace linattn {

namespace {

// Rows that are copied 16 bytes at a time, and of which those of a chunk lie
// within 2^31 bytes.
bool is_lean(const Operand& operand) {
    const Int stride = operand.tensor.position;
    return operand.dtype == Dtype::bfloat16 && operand.vectors && !operand.divided && stride >= 0 &&
           stride < (Int(1) << 31) / (2 * segment_grain);
}

bool has_lean_keys(const Product& call) {
    return is_lean(call.key) && is_lean(call.value) && call.key.of_keys && call.value.of_keys;
}

bool has_lean_rows(const Product& call) {
    const Result& result = call.result;
    return is_lean(call.row) && call.finish == Finish::divide && result.dtype == Dtype::bfloat16 && result.vectors;
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
    // Positions are counted to two chunks past the end.
    constexpr Int longest = (Int(1) << 31) - 4 * segment_grain;
    return call.queries < longest && call.keys < longest &&
           is_lean_width(call.sums ? call.key.width : call.row.width, call.value.width);
}

Status launch_lean(const Product& call, void* stream) {
    return call.value.width == 64 ? launch_lean_64(call, stream) : launch_lean_128(call, stream);
}

Status resident_lean(Int width, int* blocks) {
    return width == 64 ? resident_lean_64(blocks) : resident_lean_128(blocks);
}

}  // namespace linattn
