// What every rung of the ladder is handed, and how it reads and writes it.
//
// A rung is a kernel template <Dtype, D, M>: the dtype of all tensors, and the widths of queries and keys and of
// values, rounded up to 16. It is compiled when first asked for, for just these.
#pragma once

#include "linattn/device/feature_map.cuh"

namespace linattn::prototypes {

// Causal, normalized, forward. Tensors may have any strides; the output is contiguous.
struct Call {
    Tensor4 query, key, value, out;  // (B, H, N, D), (B, H, N, D), (B, H, N, M), (B, H, N, M)
    float* normalizer;               // (B, H, N)
    float* sums;                     // scratch of `split`: S and z at the start of each segment
    Int heads, length, segment;      // H; N; positions a segment
    int dim, value_dim;
    FeatureMap map;
    float eps;
};

// One head of a tensor, which is 0 past its length and beside its width.
template <Dtype dtype>
struct Head {
    unsigned char* data;
    Int position_stride, dim_stride, length;
    int dim;
    bool wide;  // eight neighbors are 16 bytes (or twice that), at addresses that are multiples of 16

    LINATTN_DEVICE Head(const Tensor4& x, Int heads, Int length, int dim)
        : position_stride(x.position), dim_stride(x.dim), length(length), dim(dim) {
        const Int first = block_x() / heads * x.batch + block_x() % heads * x.head;
        data = static_cast<unsigned char*>(x.data) + first * bytes_of(dtype);
        const Int misaligned = reinterpret_cast<Int>(data) | (position_stride * bytes_of(dtype));
        wide = dim_stride == 1 && dim % 8 == 0 && misaligned % 16 == 0;
    }

    LINATTN_DEVICE bool exists(Int position, int column) const { return position < length && column < dim; }

    LINATTN_DEVICE Int index(Int position, int column) const {
        return position * position_stride + column * dim_stride;
    }

    LINATTN_DEVICE const void* at(Int position, int column) const {
        return data + index(position, column) * bytes_of(dtype);
    }

    LINATTN_DEVICE float read(Int position, int column) const {
        return exists(position, column) ? read_number(data, index(position, column), dtype) : 0.0f;
    }

    // phi of it; what does not exist stays 0, whatever phi(0) is.
    LINATTN_DEVICE float read_feature(FeatureMap map, Int position, int column) const {
        return exists(position, column) ? feature(map, read(position, column)) : 0.0f;
    }

    LINATTN_DEVICE void read_eight(float (&x)[8], Int position, int column) const {
        if (wide && exists(position, column)) return linattn::read_eight(x, at(position, column), dtype);
        LINATTN_UNROLL
        for (int i = 0; i < 8; ++i) x[i] = read(position, column + i);
    }

    LINATTN_DEVICE void write(Int position, int column, float x) const {
        if (exists(position, column)) write_number(data, index(position, column), dtype, x);
    }

    // The same of two neighbors, the first in an even column: one word where they are one.
    LINATTN_DEVICE void write_pair(Int position, int column, float low, float high) const {
        if (dtype != Dtype::float32 && wide && exists(position, column)) {
            *reinterpret_cast<u32*>(data + index(position, column) * 2) =
                dtype == Dtype::bfloat16 ? pack_bf16(low, high) : pack_half(low, high);
            return;
        }
        write(position, column, low);
        write(position, column + 1, high);
    }
};

// The four tensors of one head, of the block that calls.
template <Dtype dtype>
struct Heads {
    Head<dtype> query, key, value, out;
    float* normalizer;
    FeatureMap map;
    float eps;

    LINATTN_DEVICE explicit Heads(const Call& call)
        : query(call.query, call.heads, call.length, call.dim),
          key(call.key, call.heads, call.length, call.dim),
          value(call.value, call.heads, call.length, call.value_dim),
          out(call.out, call.heads, call.length, call.value_dim),
          normalizer(call.normalizer + block_x() * call.length),
          map(call.map),
          eps(call.eps) {}
};

}  // namespace linattn::prototypes
