// Starting the lean product, of forward passes and of causal gradients.
#pragma once

#include "linattn/device/product/call.cuh"
#include "linattn/host/launch.h"

namespace linattn {

// Whether a lean kernel computes this product on the current GPU.
bool is_lean(const Product& call);
Status start_lean(const Product& call, const Start& start);

}  // namespace linattn
