// What a caller needs before a launch: shared memory of a block, and how many segments are best.
#include "parts.h"

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

// The most segments that gain something: one of fewer chunks would cost more in states.
Int most_segments(const Attention& call) {
    constexpr Int shortest = 4 * segment_grain;
    const Int positions = call.queries > call.keys ? call.queries : call.keys;
    return call.sequences == 0 ? 0 : positions * call.batch / call.sequences / shortest;
}

}  // namespace

int shared_bytes(int dim, int value_dim, Dtype query_dtype, Dtype value_dtype, Precision precision) {
    switch (parts_of(query_dtype, value_dtype, precision)) {
        case 1: return bytes_of_widths<1>(dim, value_dim);
        case 2: return bytes_of_widths<2>(dim, value_dim);
        default: return bytes_of_widths<3>(dim, value_dim);
    }
}

Plan plan_of(const Attention& call, const Wave& wave, int multiprocessors) {
    const Int at_once = Int(multiprocessors) * wave.resident, most = most_segments(call);
    if (wave.blocks == 0) return {1, 0};
    // As many segments as run side by side: one more would run alone when all others have ended. If the blocks fill
    // more than half of the GPU, cutting only costs a second reading of the keys.
    if (wave.blocks <= at_once) return {static_cast<int>(clamped(at_once / wave.blocks, 1, most < 1 ? 1 : most)), 0};
    // Of more blocks, the last would run alone. If they are few, those that fill the GPU are walked whole, and then the
    // others are cut.
    const Int units = units_of(call), blocks = wave.blocks / units;
    const Int whole = wave.blocks / at_once * at_once / blocks, rest = (units - whole) * blocks;
    const Int segments = rest == 0 ? 1 : clamped(at_once / rest, 1, most);
    constexpr Int fewest = 4;
    if (call.cu_seqlens != nullptr || whole == 0 || segments < fewest) return {1, 0};
    return {static_cast<int>(segments), whole};
}

}  // namespace linattn
