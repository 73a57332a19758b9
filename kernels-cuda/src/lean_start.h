// The lean kernels of one width; one source file each, to compile side by side.
#pragma once

#include "lean.h"
#include "linattn/device/lean.cuh"

namespace linattn {

constexpr int gradient_width = 64;  // of causal gradients

template <int D, FeatureMap map, Walk walk>
Status start_lean_of(Product call, const Start& start) {
    using Shape = LeanShape<D, map, walk>;
    call.slices = 1;
    return LINATTN_LAUNCH("lean_product", lean_product<Shape>, call.sequences * call.heads, call.launched_segments,
                          Shape::threads, Shape::shared_bytes, start, call);
}

template <int D, Walk walk>
Status start_lean_of(const Product& call, const Start& start) {
    const bool of_queries = walk == Walk::queries || walk == Walk::queries_summed;
    switch (of_queries ? call.value.map : call.sums ? call.key.map : call.row.map) {
        case FeatureMap::identity: return start_lean_of<D, FeatureMap::identity, walk>(call, start);
        case FeatureMap::relu: return start_lean_of<D, FeatureMap::relu, walk>(call, start);
        default: return start_lean_of<D, FeatureMap::elu, walk>(call, start);
    }
}

template <int D>
Status start_lean_of(const Product& call, const Start& start) {
    if (!call.reads) return start_lean_of<D, Walk::sums>(call, start);
    return call.sums ? start_lean_of<D, Walk::causal>(call, start) : start_lean_of<D, Walk::read>(call, start);
}

Status start_lean_64(const Product& call, const Start& start);
Status start_lean_128(const Product& call, const Start& start);
Status start_lean_queries(const Product& call, const Start& start);
Status start_lean_queries_summed(const Product& call, const Start& start);
Status start_lean_pair(const Product& call, const Start& start);
Status start_lean_query_sums(const Product& call, const Start& start);

}  // namespace linattn
