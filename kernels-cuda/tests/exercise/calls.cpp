#include "exercise/calls.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

#include "exercise/definition.hpp"

namespace linattn::exercise {

namespace {

void expect_launched(const Status& status) {
    if (status.error != 0) {
        throw std::runtime_error(std::string(status.kernel) + ": error " + std::to_string(status.error));
    }
}

State state_of(const Memory& s, const Memory& z) { return {s.data<float>(), z.data<float>()}; }

// The arguments that both passes share.
void fill(Attention& call, const Inputs& inputs, int segments) {
    const Shape& shape = inputs.shape;
    call.query = inputs.view(inputs.query, shape.queries, shape.dim);
    call.key = inputs.view(inputs.key, shape.keys, shape.dim);
    call.value = inputs.view(inputs.value, shape.keys, shape.value_dim);
    call.batch = shape.batch;
    call.heads = shape.heads;
    call.kv_heads = shape.kv_heads;
    call.normalize = true;
    call.queries = shape.queries;
    call.keys = shape.keys;
    call.dim = shape.dim;
    call.value_dim = shape.value_dim;
    call.key_lengths = shape.key_lengths.empty() ? nullptr : shape.key_lengths.data();
    call.cu_seqlens = shape.cu_seqlens.empty() ? nullptr : shape.cu_seqlens.data();
    call.sequences = shape.sequences();
    call.query_dtype = call.value_dtype = shape.dtype;
    call.map = shape.map;
    call.eps = static_cast<float>(eps);
    call.causal = shape.causal;
    call.segments = segments;
}

Memory workspace(Int bytes) { return Memory((bytes + 3) / 4, Dtype::float32); }

}  // namespace

Results run(const Inputs& inputs, int segments) {
    const Shape& shape = inputs.shape;
    const Int rows = shape.batch * shape.heads * shape.queries, keys = shape.batch * shape.heads * shape.keys;
    Memory out(rows * shape.value_dim, shape.dtype), normalizer(rows, Dtype::float32);
    Memory s(shape.state() * shape.value_dim, Dtype::float32), z(shape.state(), Dtype::float32);
    AttentionForward forward{};
    fill(forward, inputs, segments);
    if (shape.with_state) forward.initial = state_of(inputs.s, inputs.z);
    forward.last = state_of(s, z);
    forward.out = out.data();
    forward.normalizer = normalizer.data<float>();
    const Memory forward_work = workspace(workspace_bytes(forward));
    forward.workspace = forward_work.data();
    expect_launched(attention_forward(forward));

    Memory grad_query(rows * shape.dim, shape.dtype), grad_key(keys * shape.dim, shape.dtype);
    Memory grad_value(keys * shape.value_dim, shape.dtype);
    const Int states = shape.sequences() * shape.heads * shape.dim;
    Memory grad_s(states * shape.value_dim, Dtype::float32), grad_z(states, Dtype::float32);
    AttentionBackward backward{};
    fill(backward, inputs, segments);
    backward.grad_out = inputs.view(inputs.grad_out, shape.queries, shape.value_dim);
    backward.grad_last = state_of(inputs.grad_s, inputs.grad_z);
    backward.state = shape.causal ? forward.initial : forward.last;
    backward.out = out.data();
    backward.normalizer = normalizer.data<float>();
    backward.grad_query = grad_query.data();
    backward.grad_key = grad_key.data();
    backward.grad_value = grad_value.data();
    if (shape.with_state) backward.grad_initial = state_of(grad_s, grad_z);
    const Memory backward_work = workspace(workspace_bytes(backward));
    backward.workspace = backward_work.data();
    expect_launched(attention_backward(backward));

    Results results{{out.numbers(),
                     s.numbers(),
                     z.numbers(),
                     grad_query.numbers(),
                     grad_key.numbers(),
                     grad_value.numbers(),
                     {},
                     {}}};
    if (shape.with_state) {
        results.numbers[6] = grad_s.numbers();
        results.numbers[7] = grad_z.numbers();
    }
    return results;
}

bool step_agrees(const Inputs& inputs, double tolerance) {
    const Shape& shape = inputs.shape;
    const Int states = shape.batch * shape.kv_heads * shape.dim;
    Memory s(states * shape.value_dim, Dtype::float32), z(states, Dtype::float32);
    s.fill([] { return 0.5; });
    z.fill([] { return 1.0; });
    Memory out(shape.batch * shape.heads * shape.value_dim, shape.dtype);
    Step call{};
    // The first position of each head.
    call.query = inputs.view(inputs.query, shape.queries, shape.dim);
    call.key = inputs.view(inputs.key, shape.keys, shape.dim);
    call.value = inputs.view(inputs.value, shape.keys, shape.value_dim);
    call.s = {s.data(), shape.kv_heads * shape.dim * shape.value_dim, shape.dim * shape.value_dim, shape.value_dim, 1};
    call.z = {z.data(), shape.kv_heads * shape.dim, shape.dim, 0, 1};
    call.out = out.data();
    call.batch = shape.batch;
    call.heads = shape.heads;
    call.kv_heads = shape.kv_heads;
    call.normalize = true;
    call.slots = shape.batch;
    call.dim = shape.dim;
    call.value_dim = shape.value_dim;
    call.query_dtype = call.value_dtype = shape.dtype;
    call.map = shape.map;
    call.eps = static_cast<float>(eps);
    expect_launched(step(call));
    for (Int b = 0; b < shape.batch; ++b) {
        for (Int h = 0; h < shape.heads; ++h) {
            double read = 0, weight = 0, total = eps;  // of the old state, of the new key
            for (Int d = 0; d < shape.dim; ++d) {
                const double q = phi(shape.map, inputs.at(inputs.query, shape.queries, shape.dim, b, h, 0, d));
                const double k = phi(shape.map, inputs.at(inputs.key, shape.keys, shape.dim, b, h, 0, d));
                read += 0.5 * q;
                weight += q * k;
                total += q * (1 + k);
            }
            for (Int m = 0; m < shape.value_dim; ++m) {
                const double v = inputs.at(inputs.value, shape.keys, shape.value_dim, b, h, 0, m);
                const double expected = (read + weight * v) / total;
                const double found = out[(b * shape.heads + h) * shape.value_dim + m];
                if (!(std::fabs(found - expected) <= tolerance * std::fmax(1.0, std::fabs(expected)))) {
                    std::printf("step: expected %g, got %g\n", expected, found);
                    return false;
                }
            }
        }
    }
    return true;
}

}  // namespace linattn::exercise
