// What a caller needs before a launch: the kernels, their shared memory, and how many segments are best.
#include <vector>

#include "product.h"

namespace linattn {

namespace {

Int clamped(Int x, Int low, Int high) { return x < low ? low : x > high ? high : x; }

template <int parts>
int bytes_of_widths(Int dim, Int value_dim) {
    int bytes = -1;
    // Passes have rows of either width, and the kernel of the wider one need not take more memory.
    const auto take = [&](auto shape) {
        constexpr int needed = decltype(shape)::shared_bytes_with_origin;
        bytes = needed > bytes ? needed : bytes;
    };
    with_pair<parts>(dim > value_dim ? dim : value_dim, take);
    return with_shape<parts>(dim, take) && with_shape<parts>(value_dim, take) ? bytes : -1;
}

template <int parts>
void add_products(std::vector<const char*>& names) {
    const auto add = [&](auto shape) { names.push_back(product_name<decltype(shape)>()); };
    for (const Int width : {32, 64, 128, 256}) {
        with_shape<parts>(width, add);
        with_pair<parts>(width, add);
    }
}

std::vector<const char*> all_names() {
    std::vector<const char*> names = {"scan", "step_heads"};
    add_products<1>(names);
    add_products<2>(names);
    add_products<3>(names);
    return names;
}

}  // namespace

const char* kernel_name(int index) {
    static const std::vector<const char*> names = all_names();
    return index >= 0 && index < static_cast<int>(names.size()) ? names[index] : nullptr;
}

int shared_bytes(int dim, int value_dim, Dtype query_dtype, Dtype value_dtype, Precision precision) {
    switch (parts_of(query_dtype, value_dtype, precision)) {
        case 1: return bytes_of_widths<1>(dim, value_dim);
        case 2: return bytes_of_widths<2>(dim, value_dim);
        default: return bytes_of_widths<3>(dim, value_dim);
    }
}

Status resident_blocks(Int width, Dtype query_dtype, Dtype value_dtype, Precision precision, bool derivatives,
                       int* blocks) {
    switch (parts_of(query_dtype, value_dtype, precision)) {
        case 1: return resident_1(width, derivatives, blocks);
        case 2: return resident_2(width, derivatives, blocks);
        default: return resident_3(width, derivatives, blocks);
    }
}

int best_segments(const Extent& extent) {
    constexpr Int slice = 64, shortest = 4 * segment_grain;
    const Int blocks = extent.heads * (extent.value_dim > slice ? (extent.value_dim + slice - 1) / slice : 1);
    // As many segments as run side by side: one more would run alone when all others have ended. If the blocks fill
    // more than half of the GPU, cutting only costs a second reading of the keys.
    const Int wanted = blocks == 0 ? 1 : extent.side_by_side / blocks;
    // A segment of fewer chunks would cost more in states than it gains.
    const Int most = extent.length / shortest;
    return static_cast<int>(clamped(wanted, 1, most < 1 ? 1 : most));
}

}  // namespace linattn
