// What a caller needs before a launch: shared memory of a block, and how many segments are best.
#include "lean.h"
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

// Of a product of keys and values of these widths.
template <int parts>
Int slices_of_widths(Int width, Int columns) {
    Int slices = 1;
    with_shape<parts>(width, [&](auto shape) { slices = slices_of<decltype(shape)>(columns); });
    return slices;
}

Int slices_of_widths(const Attention& call, Int width, Int columns) {
    switch (parts_of(call.query_dtype, call.value_dtype, call.precision)) {
        case 1: return slices_of_widths<1>(width, columns);
        case 2: return slices_of_widths<2>(width, columns);
        default: return slices_of_widths<3>(width, columns);
    }
}

// The most that a pass of the call has: those of the gradients of queries and keys have keys as wide as the values.
Int most_slices(const Attention& call, bool derivatives) {
    const bool lean = parts_of(call.query_dtype, call.value_dtype, call.precision) == 1;
    if (lean && !derivatives && is_lean_width(call.dim, call.value_dim)) return 1;
    const Int slices = slices_of_widths(call, call.dim, call.value_dim);
    const Int reversed = derivatives ? slices_of_widths(call, call.value_dim, call.dim) : 1;
    return slices > reversed ? slices : reversed;
}

}  // namespace

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

int best_segments(const Attention& call, bool derivatives, Int side_by_side) {
    constexpr Int shortest = 4 * segment_grain;
    const Int blocks = call.sequences * call.heads * most_slices(call, derivatives);
    // As many segments as run side by side: one more would run alone when all others have ended. If the blocks fill
    // more than half of the GPU, cutting only costs a second reading of the keys.
    const Int wanted = blocks == 0 ? 1 : side_by_side / blocks;
    // A segment of fewer chunks would cost more in states than it gains.
    const Int positions = call.queries > call.keys ? call.queries : call.keys;
    const Int length = call.sequences == 0 ? 0 : positions * call.batch / call.sequences;
    const Int most = length / shortest;
    return static_cast<int>(clamped(wanted, 1, most < 1 ? 1 : most));
}

}  // namespace linattn
