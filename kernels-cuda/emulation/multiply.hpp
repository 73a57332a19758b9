// The arithmetic of multiply_bf16 for a whole warp.
#pragma once

#include "emulation/numbers.hpp"

namespace linattn::emulation {

// c += a b, register by register and lane by lane as they are laid out in platform.cuh. Each sum runs over k in its
// order, every product and every sum rounded to float32.
void multiply_warp(const u32 (&a)[4][32], const u32 (&b)[2][32], float (&c)[4][32]);

}  // namespace linattn::emulation
