#include "lean.h"

#include "linattn/device/lean.cuh"
#include "linattn/host/launch.h"

namespace linattn {

namespace {

constexpr int width = 64;

using Widest = LeanShape<FeatureMap::elu, Walk::causal>;

// Rows that are copied 16 bytes at a time, and of which those of a chunk lie within 2^31 bytes.
bool is_lean(const Operand& operand) {
    const Int stride = operand.tensor.position;
    return operand.width == width && operand.dtype == Dtype::bfloat16 && operand.vectors && !operand.divided &&
           stride >= 0 && stride < (Int(1) << 31) / (2 * Widest::C);
}

bool has_lean_keys(const Product& call) {
    return is_lean(call.key) && is_lean(call.value) && call.key.of_keys && call.value.of_keys;
}

bool has_lean_rows(const Product& call) {
    const Result& result = call.result;
    return is_lean(call.row) && call.finish == Finish::divide && result.dtype == Dtype::bfloat16 && result.vectors &&
           result.width == width;
}

template <FeatureMap map, Walk walk>
Status launch(Product call, void* stream) {
    using Shape = LeanShape<map, walk>;
    call.slices = 1;
    return LINATTN_LAUNCH("lean_product", lean_product<Shape>, call.sequences * call.heads, call.segments,
                          Shape::threads, Shape::shared_bytes, stream, call);
}

template <Walk walk>
Status launch(const Product& call, void* stream) {
    switch (call.sums ? call.key.map : call.row.map) {
        case FeatureMap::identity: return launch<FeatureMap::identity, walk>(call, stream);
        case FeatureMap::relu: return launch<FeatureMap::relu, walk>(call, stream);
        default: return launch<FeatureMap::elu, walk>(call, stream);
    }
}

}  // namespace

bool is_lean(const Product& call) {
    if (call.pair || call.backwards || call.mask != nullptr || call.bias != Bias::none || call.column != Column::ones)
        return false;
    if ((call.sums && !has_lean_keys(call)) || (call.reads && !has_lean_rows(call))) return false;
    // Positions are counted to two chunks past the end.
    constexpr Int longest = (Int(1) << 31) - 4 * Widest::C;
    return call.queries < longest && call.keys < longest && shared_limit() >= Widest::shared_bytes;
}

Status launch_lean(const Product& call, void* stream) {
    if (!call.reads) return launch<Walk::sums>(call, stream);
    return call.sums ? launch<Walk::causal>(call, stream) : launch<Walk::read>(call, stream);
}

Status resident_lean(int* blocks) {
    *blocks = 0;
    if (shared_limit() < Widest::shared_bytes) return {0, nullptr};
    return LINATTN_RESIDENT("lean_product", lean_product<Widest>, Widest::threads, Widest::shared_bytes, blocks);
}

}  // namespace linattn
