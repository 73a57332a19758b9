// Launching the lean product of forward passes.
#pragma once

#include "linattn/device/product/call.cuh"

namespace linattn {

// Whether the lean kernel computes this product on the current GPU.
bool is_lean(const Product& call);
Status launch_lean(const Product& call, void* stream);

// How many blocks of the widest lean kernel a multiprocessor runs side by side; 0 where none fits.
Status resident_lean(int* blocks);

}  // namespace linattn
