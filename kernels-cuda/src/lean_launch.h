// The lean kernels of one width; one source file each, to compile side by side.
#pragma once

#include "lean.h"
#include "linattn/device/lean.cuh"
#include "linattn/host/launch.h"

namespace linattn {

template <int D>
using WidestLean = LeanShape<D, FeatureMap::elu, Walk::causal>;

// Causal gradients have one width; the pass of the queries needs most shared memory.
constexpr int gradient_width = 64;
using WidestGradient = LeanShape<gradient_width, FeatureMap::elu, Walk::queries>;

template <int D, FeatureMap map, Walk walk>
Status launch_lean_of(Product call, void* stream) {
    using Shape = LeanShape<D, map, walk>;
    call.slices = 1;
    return LINATTN_LAUNCH("lean_product", lean_product<Shape>, call.sequences * call.heads, call.launched_segments,
                          Shape::threads, Shape::shared_bytes, stream, call);
}

template <int D, Walk walk>
Status launch_lean_of(const Product& call, void* stream) {
    switch (walk == Walk::queries ? call.value.map : call.sums ? call.key.map : call.row.map) {
        case FeatureMap::identity: return launch_lean_of<D, FeatureMap::identity, walk>(call, stream);
        case FeatureMap::relu: return launch_lean_of<D, FeatureMap::relu, walk>(call, stream);
        default: return launch_lean_of<D, FeatureMap::elu, walk>(call, stream);
    }
}

template <int D>
Status launch_lean_of(const Product& call, void* stream) {
    if (!call.reads) return launch_lean_of<D, Walk::sums>(call, stream);
    return call.sums ? launch_lean_of<D, Walk::causal>(call, stream) : launch_lean_of<D, Walk::read>(call, stream);
}

template <int D>
Status resident_lean_of(int* blocks) {
    using Shape = WidestLean<D>;
    return LINATTN_RESIDENT("lean_product", lean_product<Shape>, Shape::threads, Shape::shared_bytes, blocks);
}

Status launch_lean_64(const Product& call, void* stream);
Status launch_lean_128(const Product& call, void* stream);
Status resident_lean_64(int* blocks);
Status resident_lean_128(int* blocks);
Status launch_lean_queries(const Product& call, void* stream);
Status launch_lean_pair(const Product& call, void* stream);
Status launch_lean_query_sums(const Product& call, void* stream);

}  // namespace linattn
