// The gradients of linear_attention: first those of the queries, by a product that finds h too, then those of keys and
// values, by a pair where the widths allow it, else by a product each. In segments, the sums of each segment are taken
// again, and those of the gradients, once for keys and values; a lean pass of the queries takes the latter on its way.
// Where a group of query heads reads one head of keys, each of them has its own part of the gradients of keys, values and
// initial state.
#include "lean.h"
#include "parts.h"

namespace linattn {

namespace {

// The workspace: h (B, H, N), then whichever states this call needs.
struct Workspace {
    float* normalizer_gradient;
    SegmentStates sums;       // S and z of each segment, causal
    SegmentStates gradients;  // R and r of each segment, of each query head
    State total;              // R and r of the whole, not causal: the gradient of the initial state
    Int bytes;
};

Workspace workspace_of(const AttentionBackward& call) {
    Workspace work{};
    Int used = 0;
    const auto take = [&](Int numbers) {
        float* taken = static_cast<float*>(call.workspace) + used;
        used += (numbers + 31) / 32 * 32;  // what follows begins at a cache line too
        return taken;
    };
    const int segments = call.segments;
    const Int states = call.sequences * call.heads;
    work.normalizer_gradient = take(call.batch * call.heads * call.queries);
    work.sums = {nullptr, call.kv_heads, call.dim, call.value_dim, segments, Readers::group};
    work.gradients = {nullptr, call.heads, call.dim, call.value_dim, segments, Readers::own};
    const bool cut = segments > 1;
    if (cut && call.causal) work.sums.data = take(work.sums.numbers() * call.sequences * call.kv_heads * segments);
    if (cut) work.gradients.data = take(work.gradients.numbers() * states * segments);
    if (!call.causal) {
        work.total = call.grad_initial;
        if (work.total.s == nullptr) work.total.s = take(call.dim * call.value_dim * states);
        if (work.total.z == nullptr) work.total.z = take(call.dim * states);
    }
    work.bytes = used * Int(sizeof(float));
    return work;
}

// A pass over rows of queries (or of keys), its result a gradient of this width.
Product gradient_pass(const AttentionBackward& call, const Operand& row, const Operand& key, const Operand& value,
                      void* result) {
    Product product = product_of(call);
    product.reads = true;
    product.sums = call.causal;
    product.row = row;
    product.key = key;
    product.value = value;
    product.rows_are_keys = row.of_keys;
    product.backwards = row.of_keys && call.causal;
    product.normalizer = call.normalizer;
    product.result = result_of(result, value.width, value.dtype);
    return product;
}

Product query_pass(const AttentionBackward& call, const Workspace& work) {
    Product product = gradient_pass(call, gradient_of(call), values_of(call), keys_of(call), call.grad_query);
    product.bias = Bias::of_row;
    product.row_bias = call.grad_normalizer;
    product.out_bias = work.normalizer_gradient;
    product.output = output_of(call);
    product.normalize = call.normalize;
    product.finish = Finish::derivative;
    product.origin = queries_of(call);
    product.finds_bias_alone = call.grad_query == nullptr;
    if (product.finds_bias_alone) product.sums = false;
    return product;
}

Product key_pass(const AttentionBackward& call, const Workspace& work) {
    Product product = gradient_pass(call, values_of(call), gradient_of(call), queries_of(call), call.grad_key);
    product.bias = Bias::of_key;
    product.row_bias = work.normalizer_gradient;
    product.finish = Finish::derivative;
    product.origin = keys_of(call);
    product.reads = call.grad_key != nullptr;
    return product;
}

Product value_pass(const AttentionBackward& call) {
    return gradient_pass(call, keys_of(call), queries_of(call), gradient_of(call), call.grad_value);
}

// The passes of values and of keys in one.
Product pair_pass(const AttentionBackward& call, const Workspace& work) {
    Product product = value_pass(call);
    product.pair = true;
    product.second_row = values_of(call);
    product.second_result = result_of(call.grad_key, call.dim, call.query_dtype);
    product.bias = Bias::of_key;
    product.row_bias = work.normalizer_gradient;
    return product;
}

bool is_pair(const AttentionBackward& call) {
    return call.dim <= widest_pair && call.value_dim <= widest_pair && call.grad_key != nullptr &&
           call.grad_value != nullptr;
}

// Whether anything is wanted that the queries' gradients are not enough for.
bool wants_more(const AttentionBackward& call) {
    return call.grad_key != nullptr || call.grad_value != nullptr || exists(call.grad_initial);
}

// sum_i phi(q_i) [g_i, h_i]^T of each segment.
Product sums_of_queries(const AttentionBackward& call, const Workspace& work) {
    Product product = product_of(call);
    product.sums = true;
    product.key = queries_of(call);
    product.value = gradient_of(call);
    product.column = Column::bias;
    product.normalizer = call.normalizer;
    product.row_bias = work.normalizer_gradient;
    product.backwards = call.causal;
    return product;
}

// The gradients of keys and values, from a state R and r; `last` is where they leave it.
void key_value_passes(const AttentionBackward& call, const Workspace& work, const StateView& start,
                      const StateView& last, Launches& launches) {
    if (is_pair(call)) {
        Product pair = pair_pass(call, work);
        pair.start = start;
        pair.last = last;
        launches.product(pair);
        return;
    }
    Product keys = key_pass(call, work), values = value_pass(call);
    values.start = start;
    keys.start = transposed(start);
    keys.last = transposed(last);
    if (keys.reads || keys.last.matrix != nullptr || keys.last.vector != nullptr) launches.product(keys);
    if (call.grad_value != nullptr) launches.product(values);
}

void causal_whole(const AttentionBackward& call, const Workspace& work, Launches& launches) {
    Product queries = query_pass(call, work);
    queries.start = transposed(view_of(call, call.state, Readers::group));
    launches.product(queries);
    if (!wants_more(call)) return;
    // What flows back into the initial state is left in `grad_initial`.
    key_value_passes(call, work, view_of(call, call.grad_last, Readers::first),
                     view_of(call, call.grad_initial, Readers::own), launches);
}

void causal_cut(const AttentionBackward& call, const Workspace& work, Launches& launches) {
    Product queries = query_pass(call, work), sums = sums_of_keys(call), gradients = sums_of_queries(call, work);
    sums.last = work.sums.view();
    gradients.last = work.gradients.view();
    sums.launched_segments -= 1;  // nothing continues the last one's sum
    if (!exists(call.grad_initial)) {
        // Nor, backwards, the first one's.
        gradients.first_segment = 1;
        gradients.launched_segments -= 1;
    }
    if (call.grad_query != nullptr) {
        queries.start = transposed(sums.last);
        launches.product(sums).scan(work.sums, call.state, {}, false);
    }
    if (wants_more(call)) queries.query_sums = gradients.last;
    launches.product(queries);
    if (!wants_more(call)) return;
    if (!is_lean(queries)) launches.product(gradients);  // a lean kernel has summed the queries on its way
    launches.scan(work.gradients, call.grad_last, call.grad_initial, true);
    key_value_passes(call, work, gradients.last, {}, launches);
}

void not_causal(const AttentionBackward& call, const Workspace& work, Launches& launches) {
    Product queries = query_pass(call, work), gradients = sums_of_queries(call, work);
    queries.start = transposed(view_of(call, call.state, Readers::group));
    const StateView start = view_of(call, work.total, Readers::own);
    launches.product(queries);
    if (!wants_more(call)) return;
    if (call.segments == 1) {
        gradients.start = view_of(call, call.grad_last, Readers::first);
        gradients.last = start;
        launches.product(gradients);
    } else {
        gradients.last = work.gradients.view();
        launches.product(gradients).scan(work.gradients, call.grad_last, work.total, false);
    }
    key_value_passes(call, work, start, {}, launches);
}

Status run(const AttentionBackward& call, Wave* wave) {
    const Workspace work = workspace_of(call);
    Launches launches(call, wave);
    if (!call.causal) not_causal(call, work, launches);
    else if (call.segments == 1) causal_whole(call, work, launches);
    else causal_cut(call, work, launches);
    return launches.status();
}

}  // namespace

Int workspace_bytes(const AttentionBackward& call) {
    const Int whole = call.whole == 0 ? 0 : workspace_of(whole_part(call)).bytes;
    const Int cut = workspace_of(cut_part(call)).bytes;
    return whole > cut ? whole : cut;
}

Status best_plan(const AttentionBackward& call, int multiprocessors, Plan* plan) {
    return plan_by(run, call, multiprocessors, plan);
}

Status attention_backward(const AttentionBackward& call) { return run_parts(run, call); }

}  // namespace linattn
