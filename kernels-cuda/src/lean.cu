// Which products the lean kernels compute.
#include "lean_start.h"

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

bool is_forward(const Product& call) {
    const bool plain = !call.pair && !call.backwards && call.bias == Bias::none && call.column == Column::ones;
    return plain && call.mask == nullptr && (!call.sums || has_lean_keys(call)) && (!call.reads || has_lean_rows(call));
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

bool is_causal(const Product& call) { return call.mask == nullptr && call.queries == call.keys; }

// The walk that computes a product, if its tensors are as the lean kernels take them.
bool find_walk(const Product& call, Walk* walk) {
    if (is_forward(call)) *walk = !call.reads ? Walk::sums : call.sums ? Walk::causal : Walk::read;
    else if (is_query_sums(call)) *walk = Walk::query_sums;
    else if (is_causal(call) && is_query_pass(call))
        *walk = call.query_sums.matrix != nullptr ? Walk::queries_summed : Walk::queries;
    else if (is_causal(call) && is_pair(call)) *walk = Walk::pair;
    else return false;
    return true;
}

template <int D>
int shared_of_forward(Walk walk) {
    if (walk == Walk::sums) return LeanShape<D, FeatureMap::elu, Walk::sums>::shared_bytes;
    if (walk == Walk::read) return LeanShape<D, FeatureMap::elu, Walk::read>::shared_bytes;
    return LeanShape<D, FeatureMap::elu, Walk::causal>::shared_bytes;
}

int shared_of_gradients(Walk walk) {
    if (walk == Walk::queries || walk == Walk::queries_summed)
        return LeanShape<gradient_width, FeatureMap::elu, Walk::queries>::shared_bytes;
    if (walk == Walk::pair) return LeanShape<gradient_width, FeatureMap::elu, Walk::pair>::shared_bytes;
    return LeanShape<gradient_width, FeatureMap::elu, Walk::query_sums>::shared_bytes;
}

// The shared memory of a block; 0 where there is no kernel of this width.
int shared_of(Walk walk, Int width) {
    const bool forward = walk == Walk::causal || walk == Walk::sums || walk == Walk::read;
    if (!forward) return width == gradient_width ? shared_of_gradients(walk) : 0;
    return width == 64 ? shared_of_forward<64>(walk) : width == 128 ? shared_of_forward<128>(walk) : 0;
}

// The shared memory of a block of capability 7.5, for which no lean kernel is compiled. All others have more.
constexpr int turing_shared = 64 * 1024;

}  // namespace

bool is_lean(const Product& call) {
    const Int width = call.sums ? call.key.width : call.row.width;
    Walk walk{};
    if (width != call.value.width || !has_lean_lengths(call) || !find_walk(call, &walk)) return false;
    const int needed = shared_of(walk, width), limit = shared_limit();
    return needed > 0 && needed <= limit && limit > turing_shared;
}

Status start_lean(const Product& call, const Start& start) {
    Walk walk{};
    find_walk(call, &walk);
    switch (walk) {
        case Walk::queries: return start_lean_queries(call, start);
        case Walk::queries_summed: return start_lean_queries_summed(call, start);
        case Walk::pair: return start_lean_pair(call, start);
        case Walk::query_sums: return start_lean_query_sums(call, start);
        default: return call.value.width == 64 ? start_lean_64(call, start) : start_lean_128(call, start);
    }
}

}  // namespace linattn
