// The reference: the definition, position by position in double precision.
#pragma once

#include <cmath>

#include "exercise/tensors.hpp"

namespace linattn::exercise {

inline double phi(FeatureMap map, double x) {
    if (map == FeatureMap::identity) return x;
    if (map == FeatureMap::relu) return x > 0 ? x : 0;
    return x > 0 ? x + 1 : std::exp(x);
}

inline double slope(FeatureMap map, double x) {
    if (map == FeatureMap::identity) return 1;
    if (map == FeatureMap::relu) return x > 0 ? 1 : 0;
    return x > 0 ? 1 : std::exp(x);
}

// One query head of one sequence: its rows; its scores phi(q_i) . phi(k_j), decayed (0 where i does not see j); its
// normalizers and its outputs.
struct Head {
    const Attention& call;
    const Tensor &query, &key, &value;
    std::int64_t batch, head, kv_head, start, queries, keys;
    std::vector<Numbers> scores, outs;
    Numbers normalizers;

    Head(const Attention& call, const Tensor& query, const Tensor& key, const Tensor& value, std::int64_t batch,
         std::int64_t head, std::int64_t start, std::int64_t queries, std::int64_t keys)
        : call(call),
          query(query),
          key(key),
          value(value),
          batch(batch),
          head(head),
          kv_head(head / groups_of(call)),
          start(start),
          queries(queries),
          keys(keys) {
        for (std::int64_t i = 0; i < queries; ++i) {
            scores.push_back(scores_of(i));
            double sum = call.eps;
            for (double score : scores.back()) sum += score;
            normalizers.push_back(call.normalize ? sum : 1);
            outs.push_back(out_of(i));
        }
    }

    bool exists(std::int64_t j) const {
        return j < keys && (call.mask == nullptr || call.mask[batch * call.keys + start + j] != 0);
    }
    bool sees(std::int64_t i, std::int64_t j) const { return exists(j) && (!call.causal || j <= i); }

    // exp of the sum of the decay over j < m <= i.
    double decay_between(std::int64_t i, std::int64_t j) const {
        double sum = 0;
        for (std::int64_t m = j + 1; m <= i && call.log_decay != nullptr; ++m) sum += exists(m) ? decay(m) : 0;
        return std::exp(sum);
    }
    double q(std::int64_t i, std::int64_t d) const { return query.at(batch, head, start + i, d); }
    double k(std::int64_t j, std::int64_t d) const { return key.at(batch, kv_head, start + j, d); }
    double v(std::int64_t j, std::int64_t m) const { return value.at(batch, kv_head, start + j, m); }
    double weight(std::int64_t i, std::int64_t j) const { return scores[i][j] / normalizers[i]; }

    // The derivative of gradient . out_i by the score of i and j: gradient . (v_j - out_i) / n_i if normalized.
    double score_gradient(std::int64_t i, std::int64_t j, const Tensor& gradient) const {
        if (!sees(i, j)) return 0;
        double sum = 0;
        for (std::int64_t m = 0; m < call.value_dim; ++m) {
            sum += gradient.at(batch, head, start + i, m) * (v(j, m) - (call.normalize ? outs[i][m] : 0));
        }
        return sum / normalizers[i];
    }

private:
    double decay(std::int64_t m) const {
        const std::int64_t at = (batch * call.kv_heads + kv_head) * call.keys + start + m;
        if (call.value_dtype == Dtype::float64) return static_cast<const double*>(call.log_decay)[at];
        return static_cast<const float*>(call.log_decay)[at];
    }

    Numbers scores_of(std::int64_t i) const {
        Numbers row(static_cast<std::size_t>(keys));
        for (std::int64_t j = 0; j < keys; ++j) {
            for (std::int64_t d = 0; d < call.dim && sees(i, j); ++d) {
                row[j] += phi(call.map, q(i, d)) * phi(call.map, k(j, d));
            }
            row[j] *= decay_between(i, j);
        }
        return row;
    }

    Numbers out_of(std::int64_t i) const {
        Numbers sum(static_cast<std::size_t>(call.value_dim));
        for (std::int64_t j = 0; j < keys; ++j) {
            for (std::int64_t m = 0; m < call.value_dim && sees(i, j); ++m) sum[m] += weight(i, j) * v(j, m);
        }
        return sum;
    }
};

}  // namespace linattn::exercise
