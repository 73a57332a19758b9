// What all that a block does is built on: the call, which part of it is this block's, and its shared memory.
//
// ProductState, ProductResults, ProductRows and ProductBlock are layers of one object rather than objects that know one
// another: the compiler keeps an object in registers only if nothing points into it.
#pragma once

#include "linattn/device/product/call.cuh"
#include "linattn/device/product/shape.cuh"

namespace linattn {

template <class Shape>
class ProductBase {
protected:
    LINATTN_DEVICE ProductBase(const Product& call, unsigned char* shared) : call_(call), memory_{shared} {}

    // Columns of the slice that exist.
    LINATTN_DEVICE bool is_wanted(int column) const { return column < call_.value.width - work_.column; }

    const Product& call_;
    Work work_;
    ProductMemory<Shape> memory_;
};

}  // namespace linattn
