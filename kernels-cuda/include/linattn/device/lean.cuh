// The kernel of the lean product, which lean/shape.cuh explains.
#pragma once

#include "linattn/device/lean/gradients.cuh"

namespace linattn {

template <class Shape>
LINATTN_KERNEL(Shape::threads, Shape::resident)
lean_product(const LINATTN_PARAMETER Product call) {
#if defined(LINATTN_EMULATED) || __CUDA_ARCH__ >= 800  // 7.5 has less shared memory than a block needs
    LINATTN_SHARED(shared);
    if constexpr (Shape::gradients) LeanGradients<Shape>(call, shared).run();
    else LeanBlock<Shape>(call, shared).run();
#endif
}

}  // namespace linattn
