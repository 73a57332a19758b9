// linear_attention. Causal: one product, or, in segments, their sums first. Not causal: the sums over all keys, then
// the product of each query with them.
#include "parts.h"

namespace linattn {

namespace {

SegmentStates states_of(const AttentionForward& call) {
    return {
        static_cast<float*>(call.workspace), call.kv_heads, call.dim, call.value_dim, call.segments, Readers::group};
}

// What every query reads: out_i = a_i . X over its normalizer.
Product reading(const AttentionForward& call) {
    Product product = product_of(call);
    product.reads = true;
    product.row = queries_of(call);
    product.value = values_of(call);  // its width is that of the result
    product.column = Column::ones;
    product.finish = Finish::divide;
    product.result = result_of(call.out, call.value_dim, call.value_dtype);
    product.out_normalizer = call.normalizer;
    product.normalize = call.normalize;
    return product;
}

Status causal(const AttentionForward& call, Launches launches) {
    Product product = reading(call);
    product.sums = true;
    product.key = keys_of(call);
    const SegmentStates states = states_of(call);
    if (call.segments == 1) {
        product.start = view_of(call, call.initial, Readers::group);
        product.last = view_of(call, call.last, Readers::group);
    } else {
        Product sums = sums_of_keys(call);
        sums.last = product.start = states.view();
        if (!exists(call.last)) sums.launched_segments -= 1;  // nothing continues the last one's sum
        launches.product(sums).scan(states, call.initial, call.last, false);
    }
    return launches.product(product).status();
}

Status not_causal(const AttentionForward& call, Launches launches) {
    const StateView total = view_of(call, call.last, Readers::group);
    Product sums = sums_of_keys(call);
    sums.last = total;
    Product product = reading(call);
    product.start = total;
    const SegmentStates states = states_of(call);
    const bool cut = call.segments > 1;
    if (cut) sums.last = states.view();
    else sums.start = view_of(call, call.initial, Readers::group);
    launches.product(sums);
    if (cut) launches.scan(states, call.initial, call.last, false);
    return launches.product(product).status();
}

Status run(const AttentionForward& call, Wave* wave) {
    const Launches launches(call, wave);
    return call.causal ? causal(call, launches) : not_causal(call, launches);
}

}  // namespace

Int workspace_bytes(const AttentionForward& call) {
    const AttentionForward cut = cut_part(call);
    const Int states = cut.sequences * cut.kv_heads * cut.segments;
    return cut.segments == 1 ? 0 : states * states_of(cut).numbers() * Int(sizeof(float));
}

Status best_plan(const AttentionForward& call, int multiprocessors, Plan* plan) {
    return plan_by(run, call, multiprocessors, plan);
}

Status attention_forward(const AttentionForward& call) { return run_parts(run, call); }

}  // namespace linattn
