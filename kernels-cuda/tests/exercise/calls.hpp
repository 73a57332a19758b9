// Random calls of the kernels: their shapes, inputs and results.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "linattn/calls.h"

namespace linattn::exercise {

using Numbers = std::vector<double>;
using Random = std::mt19937;

inline Int between(Random& random, Int low, Int high) { return std::uniform_int_distribution<Int>(low, high)(random); }

// One call, float32 or bfloat16.
struct Shape {
    Int batch, heads, kv_heads, queries, keys, dim, value_dim;
    Dtype dtype;
    FeatureMap map;
    bool causal, with_state, length_first;
    std::vector<Int> key_lengths, cu_seqlens;
    unsigned seed;

    static Shape drawn(unsigned seed) {
        Random random(seed);
        constexpr Int widths[] = {1, 5, 16, 24, 32, 40, 64, 72, 128, 136};
        Shape shape{};
        shape.seed = seed;
        // Two calls of the lean gradients are longer: in segments, each block walks several chunks.
        const bool is_long = seed % 12 == 10;
        shape.causal = is_long || between(random, 0, 2) > 0;
        shape.batch = between(random, 1, 2);
        shape.kv_heads = between(random, 1, 2);
        shape.heads = shape.kv_heads * between(random, 1, 2);
        shape.queries = is_long ? between(random, 400, 500) : between(random, 1, 220);
        shape.keys = shape.causal ? shape.queries : between(random, 1, 220);
        // Wide heads are rarer, for their time.
        shape.dim = widths[between(random, 0, seed % 4 == 0 ? 9 : 6)];
        shape.value_dim = widths[between(random, 0, seed % 4 == 0 ? 9 : 6)];
        // So that the lean kernels run too, which take 64 or 128 dims in bfloat16.
        if (seed % 6 == 4) shape.dim = shape.value_dim = seed % 4 == 0 ? 128 : 64;
        shape.dtype = seed % 3 == 0 ? Dtype::float32 : Dtype::bfloat16;
        shape.map = between(random, 0, 3) > 0 ? FeatureMap::elu : FeatureMap::relu;
        shape.with_state = between(random, 0, 1) == 1;
        shape.length_first = between(random, 0, 1) == 1;
        if (seed % 5 == 1) {
            for (Int b = 0; b < shape.batch; ++b) shape.key_lengths.push_back(between(random, 0, shape.keys));
        } else if (seed % 5 == 2) {
            shape.batch = 1;
            shape.keys = shape.queries;
            const Int cut = between(random, 0, shape.keys);
            shape.cu_seqlens = {0, cut, cut, shape.keys};
        }
        return shape;
    }

    Int sequences() const { return cu_seqlens.empty() ? batch : static_cast<Int>(cu_seqlens.size()) - 1; }
    Int state() const { return sequences() * kv_heads * dim; }

    void print() const {
        std::printf("seed %u: B=%lld H=%lld/%lld N=%lld L=%lld D=%lld M=%lld dtype %d map %d %s\n", seed, batch, heads,
                    kv_heads, queries, keys, dim, value_dim, int(dtype), int(map), causal ? "causal" : "not causal");
    }
};

// Memory of exactly so many numbers, bfloat16 or float32, so that a sanitizer sees a read past an end.
class Memory {
public:
    Memory(Int size, Dtype dtype)
        : size_(size), dtype_(dtype), bytes_(new unsigned char[static_cast<std::size_t>(size * width())]) {
        std::memset(bytes_.get(), 0xff, static_cast<std::size_t>(size * width()));  // NaN
    }

    template <class Draw>
    void fill(const Draw& draw) {
        for (Int i = 0; i < size_; ++i) {
            const float x = static_cast<float>(draw());
            std::uint32_t bits;
            std::memcpy(&bits, &x, 4);
            if (dtype_ == Dtype::bfloat16) bits >>= 16;
            std::memcpy(bytes_.get() + i * width(), &bits, static_cast<std::size_t>(width()));
        }
    }

    double operator[](Int i) const {
        std::uint32_t bits = 0;
        std::memcpy(&bits, bytes_.get() + i * width(), static_cast<std::size_t>(width()));
        if (dtype_ == Dtype::bfloat16) bits <<= 16;
        float x;
        std::memcpy(&x, &bits, 4);
        return x;
    }

    Numbers numbers() const {
        Numbers all;
        for (Int i = 0; i < size_; ++i) all.push_back((*this)[i]);
        return all;
    }

    template <class T = void>
    T* data() const {
        return reinterpret_cast<T*>(bytes_.get());
    }

private:
    Int width() const { return dtype_ == Dtype::bfloat16 ? 2 : 4; }
    Int size_;
    Dtype dtype_;
    std::unique_ptr<unsigned char[]> bytes_;
};

// The tensors that a call reads.
struct Inputs {
    explicit Inputs(const Shape& of)
        : shape(of),
          query(of.batch * of.heads * of.queries * of.dim, of.dtype),
          key(of.batch * of.kv_heads * of.keys * of.dim, of.dtype),
          value(of.batch * of.kv_heads * of.keys * of.value_dim, of.dtype),
          grad_out(of.batch * of.heads * of.queries * of.value_dim, of.dtype),
          s(of.state() * of.value_dim, Dtype::float32),
          z(of.state(), Dtype::float32),
          grad_s(of.state() * of.value_dim, Dtype::float32),
          grad_z(of.state(), Dtype::float32) {
        Random random(of.seed + 1000);
        std::normal_distribution<double> normal;
        const auto draw = [&] { return normal(random); };
        for (Memory* x : {&query, &key, &value, &grad_out, &s, &grad_s, &grad_z}) x->fill(draw);
        z.fill([&] { return std::abs(normal(random)); });
    }

    Tensor4 view(const Memory& x, Int length, Int dim) const {
        const Int heads = &x == &key || &x == &value ? shape.kv_heads : shape.heads;
        const Int head = shape.length_first ? dim : length * dim;
        return {x.data(), heads * length * dim, head, shape.length_first ? heads * dim : dim, 1};
    }
    // The number that query head h reads.
    double at(const Memory& x, Int length, Int dim, Int b, Int h, Int n, Int d) const {
        const Tensor4 of = view(x, length, dim);
        const Int head = &x == &key || &x == &value ? kv_head(h) : h;
        return x[b * of.batch + head * of.head + n * of.position + d];
    }
    Int kv_head(Int h) const { return h / (shape.heads / shape.kv_heads); }

    const Shape& shape;
    Memory query, key, value, grad_out, s, z, grad_s, grad_z;
};

// What a call writes, by name.
struct Results {
    static constexpr int count = 8;
    static constexpr const char* names[count] = {"out",      "s",          "z",      "grad query",
                                                 "grad key", "grad value", "grad s", "grad z"};
    Numbers numbers[count];
    const Numbers& out() const { return numbers[0]; }
};

// The forward and the backward pass; raises where a launch fails.
Results run(const Inputs& inputs, int segments);

// Whether one decoding step agrees with its definition.
bool step_agrees(const Inputs& inputs, double tolerance);

}  // namespace linattn::exercise
