// Launching the lean product of forward passes.
#pragma once

#include "linattn/device/product/call.cuh"

namespace linattn {

// Whether there is a lean kernel for these widths that the current GPU runs, in
// bfloat16.
bool is_lean_width(Int dim, Int value_dim);

// Whether the lean kernel computes this product on the current GPU.
bool is_lean(const Product& call);
Status launch_lean(const Product& call, void* stream);

// How many blocks of the widest lean kernel of a width a multiprocessor runs
// side by side.
Status resident_lean(Int width, int* blocks);

}  // namespace linattn
