// Launching the lean product, of forward passes and of causal gradients.
#pragma once

#include "linattn/device/product/call.cuh"

namespace linattn {

// Whether there is a lean kernel for these widths, in bfloat16, that the current GPU runs.
bool is_lean_width(Int dim, Int value_dim);

// Whether the lean kernel computes this product on the current GPU.
bool is_lean(const Product& call);
Status launch_lean(const Product& call, void* stream);

// The same for the causal gradients.
bool has_lean_gradients(Int dim, Int value_dim);
bool is_lean_gradient(const Product& call);
Status launch_lean_gradient(const Product& call, void* stream);
// How many blocks of the kernel with most shared memory a multiprocessor runs side by side.
Status resident_lean_gradients(int* blocks);

// How many blocks of the lean kernel of a width with most shared memory a multiprocessor runs side by side.
Status resident_lean(Int width, int* blocks);

}  // namespace linattn
