// h_i = -g_i . out_i with g_i = G_i / n_i, plus the upstream gradient of the normalizer of query i.
#pragma once

#include "linattn/device/operand.cuh"

namespace linattn {

struct NormalizerGradient {
    Operand grad_out;
    const void* out;  // contiguous (B, H, N, M), the dtype of grad_out
    const float* normalizer;
    const float* upstream;  // (B, H, N), or null
    float* result;          // (B, H, N)
    Int batch, heads, queries;
    int parts;
    bool vectors;    // eight neighbors of both may be read at once
    bool normalize;  // otherwise the output does not depend on it
};

constexpr int normalizer_gradient_threads = 256, lanes_of_row = 8;

// g as it enters the products: rounded with one part. h must use the same g.
LINATTN_DEVICE float as_seen(float g, int parts) { return parts == 1 ? low_bf16(pack_bf16(g, 0.0f) & 0xffffu) : g; }

// Eight lanes share a row.
LINATTN_KERNEL(normalizer_gradient_threads, 1) normalizer_gradient(const LINATTN_PARAMETER NormalizerGradient call) {
    const Int row = (block_x() * normalizer_gradient_threads + thread_index()) / lanes_of_row;
    const int lane = thread_index() % lanes_of_row;
    const bool exists = row < call.batch * call.heads * call.queries;
    const Operand& grad_out = call.grad_out;
    float sum = 0;
    if (exists && call.normalize) {
        const Int width = grad_out.width, position = row % call.queries;
        const Place place = {row / call.queries / call.heads, row / call.queries % call.heads, 0, 0, 0, 0};
        const float n = call.normalizer[row];
        Int first = lane * 8;
        for (; call.vectors && first < width; first += lanes_of_row * 8) {
            float g[8], out[8];
            read_eight(g, address(grad_out, place, position, first), grad_out.dtype);
            read_eight(out,
                       static_cast<const unsigned char*>(call.out) + (row * width + first) * bytes_of(grad_out.dtype),
                       grad_out.dtype);
            LINATTN_UNROLL
            for (int k = 0; k < 8; ++k) sum -= as_seen(g[k] / n, call.parts) * out[k];
        }
        if (!call.vectors) {
            for (Int column = lane; column < width; column += lanes_of_row) {
                const float g = read_number(address(grad_out, place, position, column), 0, grad_out.dtype) / n;
                sum -= as_seen(g, call.parts) * read_number(call.out, row * width + column, grad_out.dtype);
            }
        }
    }
    LINATTN_UNROLL
    for (int mask = lanes_of_row / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
    if (exists && lane == 0) call.result[row] = sum + (call.upstream == nullptr ? 0.0f : call.upstream[row]);
}

}  // namespace linattn
