// The feature maps, and their derivatives by what they were applied to.
#pragma once

#include "linattn/device/numbers.cuh"

namespace linattn {

// phi(x). elu(x) + 1 is exp(x) below zero and x + 1 above, which does not cancel (equation 7 of the paper). Numbers
// that are kept in fewer than three parts have no use for the last bits of the exponential.
template <int parts>
LINATTN_DEVICE float below_zero(float x) {
    return parts < 3 ? fast_exponential(x) : exponential(x);
}

template <int parts = 3>
LINATTN_DEVICE float feature(FeatureMap map, float x) {
    if (map == FeatureMap::elu) return x > 0.0f ? x + 1.0f : below_zero<parts>(x);
    if (map == FeatureMap::relu) return x > 0.0f ? x : (x == x ? 0.0f : x);
    return x;
}

template <int parts = 3>
LINATTN_DEVICE float feature_derivative(FeatureMap map, float x) {
    if (map == FeatureMap::elu) return x > 0.0f ? 1.0f : below_zero<parts>(x);
    if (map == FeatureMap::relu) return x > 0.0f ? 1.0f : 0.0f;
    return 1.0f;
}

// The derivative where the feature is known: of elu + 1 the feature itself below zero, where it is less than 1.
LINATTN_DEVICE float derivative_by_feature(FeatureMap map, float feature) {
    if (map == FeatureMap::elu) return feature > 1.0f ? 1.0f : feature;
    if (map == FeatureMap::relu) return feature > 0.0f ? 1.0f : 0.0f;
    return 1.0f;
}

}  // namespace linattn
