// The kernel of the product; what that is, see product/call.cuh.
#pragma once

#include "linattn/device/product/block.cuh"

namespace linattn {

template <class Shape>
LINATTN_KERNEL(Shape::threads, Shape::resident)
product(const LINATTN_PARAMETER Product call) {
    LINATTN_SHARED(shared);
    ProductBlock<Shape>(call, shared).run();
}

}  // namespace linattn
