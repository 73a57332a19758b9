// Starting the product: which kernel for which widths, and the grid.
#pragma once

#include <string>

#include "linattn/device/product.cuh"
#include "linattn/host/launch.h"

namespace linattn {

// The kernels of each number of parts, by the least width of rows that they hold. Chunks are as long, and slices as
// wide, as registers and the shared memory of a block allow.
template <int parts>
struct ProductShapes {
    using Least = ProductShape<parts, 32, 32, parts == 1 ? 64 : 32>;
    using Small = ProductShape<parts, 64, 64, parts == 1 ? 32 : 16>;
    using Large = ProductShape<parts, 128, 64, parts == 1 ? 32 : 16>;
    using Most = ProductShape<parts, 256, parts == 2 ? 64 : 32, parts == 1 ? 32 : 16>;
    using LeastPair = ProductShape<parts, 32, 32, Least::C, true>;
    using SmallPair = ProductShape<parts, 64, 64, Small::C, true>;
};

// Calls `use` with a Shape for rows of this width; false where there is none.
template <int parts, class Use>
bool with_shape(Int width, const Use& use) {
    using Shapes = ProductShapes<parts>;
    if (width <= 32) use(typename Shapes::Least{});
    else if (width <= 64) use(typename Shapes::Small{});
    else if (width <= 128) use(typename Shapes::Large{});
    else if (width <= 256) use(typename Shapes::Most{});
    else return false;
    return true;
}

// The same for a pair, both of whose widths are at most this one.
template <int parts, class Use>
bool with_pair(Int width, const Use& use) {
    using Shapes = ProductShapes<parts>;
    if (width <= 32) use(typename Shapes::LeastPair{});
    else if (width <= widest_pair) use(typename Shapes::SmallPair{});
    else return false;
    return true;
}

// The kernel of a shape by its name.
template <class Shape>
const char* product_name() {
    static const std::string name = "product<ProductShape<" + std::to_string(Shape::parts) + ", " +
                                    std::to_string(Shape::A) + ", " + std::to_string(Shape::E) + ", " +
                                    std::to_string(Shape::C) + (Shape::pair ? ", true" : "") + ">>";
    return name.c_str();
}

constexpr int error_invalid_value = 1;  // cudaErrorInvalidValue

// How many blocks share the columns of the values. Those of width 0 still have normalizers.
template <class Shape>
int slices_of(Int columns) {
    return columns == 0 ? 1 : static_cast<int>((columns + Shape::E - 1) / Shape::E);
}

template <class Shape>
Status start_shape(Product call, const Start& start) {
    call.slices = slices_of<Shape>(call.value.width);
    const Int blocks = call.sequences * call.heads * call.slices;
    const int shared = call.finish == Finish::derivative ? Shape::shared_bytes_with_origin : Shape::shared_bytes;
    return LINATTN_LAUNCH(product_name<Shape>(), product<Shape>, blocks, call.launched_segments, Shape::threads, shared,
                          start, call);
}

template <int parts>
Status start_product_of(const Product& call, const Start& start) {
    Status status = {error_invalid_value, "product"};
    const auto launch = [&](auto shape) { status = start_shape<decltype(shape)>(call, start); };
    if (call.pair) {
        with_pair<parts>(call.row.width > call.value.width ? call.row.width : call.value.width, launch);
    } else {
        with_shape<parts>(call.sums ? call.key.width : call.row.width, launch);
    }
    return status;
}

// One source file each, to compile side by side.
Status start_product_1(const Product& call, const Start& start);
Status start_product_2(const Product& call, const Start& start);
Status start_product_3(const Product& call, const Start& start);

}  // namespace linattn
