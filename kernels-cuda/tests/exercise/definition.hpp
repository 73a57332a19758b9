// The definition of the forward pass in double precision.
#pragma once

#include <cmath>

#include "exercise/calls.hpp"

namespace linattn::exercise {

// Not smaller: with features of relu, gradients would be differences of numbers a thousand times as large.
constexpr double eps = 1e-2;

inline double phi(FeatureMap map, double x) {
    if (map == FeatureMap::relu) return x > 0 ? x : 0;
    return x > 0 ? x + 1 : std::exp(x);
}

// Which keys a query sees: those of its sequence that exist, and are not later.
struct Seen {
    Int sequence, first, end;
};
inline Seen seen_by(const Shape& shape, Int batch, Int position) {
    Seen seen = {batch, 0, shape.key_lengths.empty() ? shape.keys : shape.key_lengths[batch]};
    for (std::size_t i = 0; i + 1 < shape.cu_seqlens.size(); ++i) {
        if (shape.cu_seqlens[i] <= position && position < shape.cu_seqlens[i + 1]) {
            seen = {static_cast<Int>(i), shape.cu_seqlens[i], shape.cu_seqlens[i + 1]};
        }
    }
    if (shape.causal && seen.end > position + 1) seen.end = position + 1;
    return seen;
}

// out of one query, (M).
inline Numbers definition_of(const Inputs& inputs, Int b, Int h, Int i) {
    const Shape& shape = inputs.shape;
    const Seen seen = seen_by(shape, b, i);
    Numbers out(static_cast<std::size_t>(shape.value_dim));
    double normalizer = eps;
    const auto add = [&](double weight, const auto& value) {
        for (Int m = 0; m < shape.value_dim; ++m) out[m] += weight * value(m);
    };
    for (Int d = 0; d < shape.dim && shape.with_state; ++d) {
        const double q = phi(shape.map, inputs.at(inputs.query, shape.queries, shape.dim, b, h, i, d));
        const Int row = (seen.sequence * shape.kv_heads + inputs.kv_head(h)) * shape.dim + d;
        normalizer += q * inputs.z[row];
        add(q, [&](Int m) { return inputs.s[row * shape.value_dim + m]; });
    }
    for (Int j = seen.first; j < seen.end; ++j) {
        double weight = 0;
        for (Int d = 0; d < shape.dim; ++d) {
            weight += phi(shape.map, inputs.at(inputs.query, shape.queries, shape.dim, b, h, i, d)) *
                      phi(shape.map, inputs.at(inputs.key, shape.keys, shape.dim, b, h, j, d));
        }
        normalizer += weight;
        add(weight, [&](Int m) { return inputs.at(inputs.value, shape.keys, shape.value_dim, b, h, j, m); });
    }
    for (double& x : out) x /= normalizer;
    return out;
}

// out of all queries, (B, H, N, M).
inline Numbers definition(const Inputs& inputs) {
    Numbers all;
    for (Int b = 0; b < inputs.shape.batch; ++b) {
        for (Int h = 0; h < inputs.shape.heads; ++h) {
            for (Int i = 0; i < inputs.shape.queries; ++i) {
                for (double x : definition_of(inputs, b, h, i)) all.push_back(x);
            }
        }
    }
    return all;
}

}  // namespace linattn::exercise
