// Tensors in memory of exactly their size, so that a sanitizer sees a read past an end.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "calls.hpp"

namespace linattn::exercise {

using Numbers = std::vector<double>;
using Random = std::mt19937;

inline std::int64_t between(Random& random, std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
}

inline float as_float(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

// (batch, heads, length, dim) in memory of its own, of any dtype but float16, which has the same
// size as bfloat16; `length_first` swaps heads and length in memory.
class Tensor {
public:
    Tensor(std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim, Dtype dtype,
           bool length_first = false)
        : batch_(batch),
          heads_(heads),
          length_(length),
          dim_(dim),
          dtype_(dtype),
          length_first_(length_first),
          memory_(new char[static_cast<std::size_t>(size() * bytes_of(dtype))]()) {}

    static Tensor normal(Random& random, std::int64_t batch, std::int64_t heads, std::int64_t length, std::int64_t dim,
                         Dtype dtype, bool length_first) {
        Tensor x(batch, heads, length, dim, dtype, length_first);
        std::normal_distribution<double> draw;
        for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, draw(random));
        return x;
    }

    std::int64_t size() const { return batch_ * heads_ * length_ * dim_; }
    void* data() const { return memory_.get(); }

    Tensor4 view() const {
        const std::int64_t head = length_first_ ? dim_ : length_ * dim_;
        const std::int64_t position = length_first_ ? heads_ * dim_ : dim_;
        return {data(), heads_ * length_ * dim_, head, position, 1};
    }

    double at(std::int64_t b, std::int64_t h, std::int64_t n, std::int64_t d) const {
        const Tensor4 x = view();
        return get(b * x.batch + h * x.head + n * x.position + d);
    }

    double get(std::int64_t i) const {
        if (dtype_ == Dtype::float64) return static_cast<double*>(data())[i];
        if (dtype_ == Dtype::float32) return static_cast<float*>(data())[i];
        return as_float(static_cast<std::uint32_t>(static_cast<std::uint16_t*>(data())[i]) << 16);
    }

    void set(std::int64_t i, double x) {
        const float single = static_cast<float>(x);
        std::uint32_t bits;
        std::memcpy(&bits, &single, sizeof bits);
        if (dtype_ == Dtype::float64) {
            static_cast<double*>(data())[i] = x;
        } else if (dtype_ == Dtype::float32) {
            static_cast<float*>(data())[i] = single;
        } else {
            static_cast<std::uint16_t*>(data())[i] = static_cast<std::uint16_t>(bits >> 16);
        }
    }

private:
    std::int64_t batch_, heads_, length_, dim_;
    Dtype dtype_;
    bool length_first_;
    std::unique_ptr<char[]> memory_;
};

}  // namespace linattn::exercise
