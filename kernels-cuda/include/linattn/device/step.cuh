// One decoding step (equations 18 to 20): s += phi(k) v^T, z += phi(k), out = phi(q)^T s / (phi(q)^T z + eps).
//
// The cost is reading and writing the state once. Each warp has a head: lanes share the columns of s, four neighbors
// each, then its rows.
#pragma once

#include "linattn/device/feature_map.cuh"

namespace linattn {

constexpr int step_warps = 4, step_threads = 32 * step_warps;
constexpr int ahead = 4;  // rows of s that a lane loads before it goes on

// What a warp works on: one sequence and head.
struct StepHead {
    const Step& call;
    Int batch, head;

    LINATTN_DEVICE Int offset(const Tensor4& x) const { return batch * x.batch + head * x.head; }
    LINATTN_DEVICE float read(const Tensor4& x, Int column, Dtype dtype) const {
        return read_number(x.data, offset(x) + column * x.dim, dtype);
    }
    LINATTN_DEVICE float query(Int d) const { return feature(call.map, read(call.query, d, call.query_dtype)); }
    LINATTN_DEVICE float key(Int d) const { return feature(call.map, read(call.key, d, call.query_dtype)); }
    LINATTN_DEVICE float* s(Int d, Int m) const {
        return static_cast<float*>(call.s.data) + offset(call.s) + d * call.s.position + m * call.s.dim;
    }
    LINATTN_DEVICE float* z(Int d) const { return static_cast<float*>(call.z.data) + offset(call.z) + d * call.z.dim; }
};

LINATTN_DEVICE float warp_sum(float x) {
    LINATTN_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

// Updates z and returns the normalizer in every lane. Writes the features to shared memory for all lanes.
LINATTN_DEVICE float step_normalizer(const StepHead& of, float* queries, float* keys) {
    float sum = 0;
    for (Int d = thread_index() % 32; d < of.call.dim; d += 32) {
        const float q = of.query(d), k = of.key(d);
        const float z = *of.z(d) + k;
        *of.z(d) = z;
        queries[d] = q;
        keys[d] = k;
        sum += q * z;
    }
    return warp_sum(sum) + of.call.eps;
}

template <int width>
LINATTN_DEVICE void load_columns(float (&x)[width], const float* s) {
    if constexpr (width == 4) {
        const Quad quad = *reinterpret_cast<const Quad*>(s);
        LINATTN_UNROLL
        for (int i = 0; i < 4; ++i) x[i] = bits_to_float(quad.words[i]);
    } else {
        x[0] = *s;
    }
}

template <int width>
LINATTN_DEVICE void store_columns(float* s, const float (&x)[width]) {
    if constexpr (width == 4) {
        *reinterpret_cast<Quad*>(s) = {
            {float_to_bits(x[0]), float_to_bits(x[1]), float_to_bits(x[2]), float_to_bits(x[3])}};
    } else {
        *s = x[0];
    }
}

// Columns from `first` on: `columns` lanes side by side with `width` neighbors each, the other lanes further rows.
template <int width>
LINATTN_DEVICE void step_columns(const StepHead& of, const float* queries, const float* keys, float normalizer,
                                 Int first, int columns) {
    const int lane = thread_index() % 32;
    const Int m = first + lane % columns * width;
    const bool there = m < of.call.value_dim;
    float value[width], sum[width];
    LINATTN_UNROLL
    for (int i = 0; i < width; ++i) {
        value[i] = there ? of.read(of.call.value, m + i, of.call.value_dtype) : 0.0f;
        sum[i] = 0;
    }
    const int stride = 32 / columns;
    for (Int d = lane / columns; there && d < of.call.dim; d += ahead * stride) {
        // All loads first: the compiler cannot rule out that the stores overlap them.
        float x[ahead][width];
        LINATTN_UNROLL
        for (int row = 0; row < ahead; ++row) {
            if (d + row * stride < of.call.dim) load_columns<width>(x[row], of.s(d + row * stride, m));
        }
        LINATTN_UNROLL
        for (int row = 0; row < ahead; ++row) {
            const Int at = d + row * stride;
            if (at >= of.call.dim) continue;
            LINATTN_UNROLL
            for (int i = 0; i < width; ++i) {
                x[row][i] += keys[at] * value[i];
                sum[i] += queries[at] * x[row][i];
            }
            store_columns<width>(of.s(at, m), x[row]);
        }
    }
    LINATTN_UNROLL
    for (int i = 0; i < width; ++i) {
        for (int mask = 16; mask >= columns; mask /= 2) sum[i] += shuffle_xor(sum[i], mask);
        if (there && lane < columns) {
            const Int at = (of.batch * of.call.heads + of.head) * of.call.value_dim + m + i;
            write_number(of.call.out, at, of.call.value_dtype, sum[i] / normalizer);
        }
    }
}

// `vectors`: the rows of s are contiguous and begin at multiples of 16 bytes.
LINATTN_KERNEL(step_threads, 1) step_heads(const LINATTN_PARAMETER Step call, const bool vectors) {
    LINATTN_SHARED(shared);
    const int warp = thread_index() / 32;
    const Int index = block_x() * step_warps + warp;
    if (index >= call.batch * call.heads) return;  // the whole warp
    float* queries = reinterpret_cast<float*>(shared) + warp * 2 * call.dim;
    float* keys = queries + call.dim;
    const StepHead of = {call, index / call.heads, index % call.heads};
    const float normalizer = step_normalizer(of, queries, keys);
    LINATTN_WARP_BARRIER();
    // As many lanes side by side as the values fill, the next power of two.
    const int width = vectors ? 4 : 1;
    int columns = 1;
    while (columns < 32 && columns * width < call.value_dim) columns *= 2;
    for (Int first = 0; first < call.value_dim; first += columns * width) {
        if (vectors) step_columns<4>(of, queries, keys, normalizer, first, columns);
        else step_columns<1>(of, queries, keys, normalizer, first, columns);
    }
}

}  // namespace linattn
