// One decoding step (equations 18 to 20): s += phi(k) v^T, z += phi(k), out = phi(q)^T s / (phi(q)^T z + eps).
//
// The cost is reading and writing the state once. Each warp has a head of keys, or, where heads are few, the warps of a
// block share one. The columns of s are cut into slices of 32; lanes share those, four neighbors each, then the rows.
// The first query head of a group adds the key on the way, and the others read what their own lanes have written. A
// slice has the same sums in the same order whichever warp computes it.
#pragma once

#include "linattn/device/feature_map.cuh"

namespace linattn {

constexpr int step_warps = 4, step_threads = 32 * step_warps;
constexpr int ahead = 4;  // rows of s that a lane loads before it goes on
constexpr int slice_columns = 32;

// What a warp works on: one sequence and head of queries.
struct StepHead {
    const Step& call;
    Int batch, head, kv_head, slot;
    bool adds;  // the key is not in the state yet

    LINATTN_DEVICE float read(const Tensor4& x, Int of, Int column, Dtype dtype) const {
        return read_number(x.data, batch * x.batch + of * x.head + column * x.dim, dtype);
    }
    LINATTN_DEVICE float query(Int d) const { return feature(call.map, read(call.query, head, d, call.query_dtype)); }
    LINATTN_DEVICE float key(Int d) const { return feature(call.map, read(call.key, kv_head, d, call.query_dtype)); }
    LINATTN_DEVICE float value(Int m) const { return read(call.value, kv_head, m, call.value_dtype); }
    LINATTN_DEVICE float* of_state(const Tensor4& x) const {
        return static_cast<float*>(x.data) + slot * x.batch + kv_head * x.head;
    }
    LINATTN_DEVICE float* s(Int d, Int m) const { return of_state(call.s) + d * call.s.position + m * call.s.dim; }
    LINATTN_DEVICE float* z(Int d) const { return of_state(call.z) + d * call.z.dim; }
    LINATTN_DEVICE void write(Int m, float x) const {
        write_number(call.out, (batch * call.heads + head) * call.value_dim + m, call.value_dtype, x);
    }
};

LINATTN_DEVICE float warp_sum(float x) {
    LINATTN_UNROLL
    for (int mask = 16; mask > 0; mask /= 2) x += shuffle_xor(x, mask);
    return x;
}

// Updates z, where the key is to be added, and returns the normalizer in every lane. Writes the features to shared
// memory for all lanes.
LINATTN_DEVICE float step_normalizer(const StepHead& of, float* queries, float* keys) {
    float sum = 0;
    for (Int d = thread_index() % 32; d < of.call.dim; d += 32) {
        const float q = of.query(d);
        float z = *of.z(d);
        if (of.adds) {
            keys[d] = of.key(d);
            z += keys[d];
            *of.z(d) = z;
        }
        queries[d] = q;
        sum += q * z;
    }
    const float normalizer = warp_sum(sum) + of.call.eps;
    return of.call.normalize ? normalizer : 1.0f;
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
        value[i] = there && of.adds ? of.value(m + i) : 0.0f;
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
                if (of.adds) x[row][i] += keys[at] * value[i];
                sum[i] += queries[at] * x[row][i];
            }
            if (of.adds) store_columns<width>(of.s(at, m), x[row]);
        }
    }
    LINATTN_UNROLL
    for (int i = 0; i < width; ++i) {
        for (int mask = 16; mask >= columns; mask /= 2) sum[i] += shuffle_xor(sum[i], mask);
        if (there && lane < columns) of.write(m + i, sum[i] / normalizer);
    }
}

// `sharing` warps compute the head, each every so many slices.
LINATTN_DEVICE void step_head(const StepHead& of, float* queries, float* keys, bool vectors, int sharing) {
    const int warp = sharing == 1 ? 0 : thread_index() / 32;
    float& normalizer = queries[2 * of.call.dim];
    if (warp == 0) {
        const float sum = step_normalizer(of, queries, keys);
        if (thread_index() % 32 == 0) normalizer = sum;
    }
    if (sharing == 1) LINATTN_WARP_BARRIER();
    else LINATTN_BLOCK_BARRIER();
    // As many lanes side by side as the columns of a slice fill, the next power of two.
    const int width = vectors ? 4 : 1;
    int columns = 1;
    while (columns * width < slice_columns && columns * width < of.call.value_dim) columns *= 2;
    for (Int first = warp * slice_columns; first < of.call.value_dim; first += sharing * slice_columns) {
        if (vectors) step_columns<4>(of, queries, keys, normalizer, first, columns);
        else step_columns<1>(of, queries, keys, normalizer, first, columns);
    }
    // The next head's features may take the place of these.
    if (sharing == 1) LINATTN_WARP_BARRIER();
    else LINATTN_BLOCK_BARRIER();
}

// `vectors`: the rows of s are contiguous and begin at multiples of 16 bytes. `sharing`: 1, or all warps of a block.
LINATTN_KERNEL(step_threads, 1) step_heads(const LINATTN_PARAMETER Step call, const bool vectors, const int sharing) {
    LINATTN_SHARED(shared);
    const int warp = sharing == 1 ? thread_index() / 32 : 0;
    const Int index = sharing == 1 ? block_x() * step_warps + warp : block_x();
    if (index >= call.batch * call.kv_heads) return;  // the whole warp
    float* queries = reinterpret_cast<float*>(shared) + warp * (2 * call.dim + 1);
    const Int batch = index / call.kv_heads, kv_head = index % call.kv_heads, group = call.heads / call.kv_heads;
    const Int slot = call.state_indices == nullptr ? batch : call.state_indices[batch];
    for (Int i = 0; i < group; ++i) {
        const StepHead of = {call, batch, kv_head * group + i, kv_head, slot, i == 0};
        if (slot >= 0 && slot < call.slots) {
            step_head(of, queries, queries + call.dim, vectors, sharing);
        } else {
            const int first = sharing == 1 ? thread_index() % 32 : thread_index();
            for (Int m = first; m < call.value_dim; m += 32 * sharing) of.write(m, 0.0f);
        }
    }
}

}  // namespace linattn
