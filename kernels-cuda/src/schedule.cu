// What a caller asks before it launches: whether there is a kernel, and how to cut the sequence.
#include "product.h"

namespace linattn {

namespace {

template <int parts>
int bytes_of_widths(Int dim, Int value_dim) {
    int bytes = -1;
    // Rows of the passes are of one width or of the other.
    with_shape<parts>(dim > value_dim ? dim : value_dim, [&](auto shape) { bytes = decltype(shape)::shared_bytes; });
    return bytes;
}

}  // namespace

int shared_bytes(int dim, int value_dim, Dtype query_dtype, Dtype value_dtype, Precision precision) {
    switch (parts_of(query_dtype, value_dtype, precision)) {
        case 1: return bytes_of_widths<1>(dim, value_dim);
        case 2: return bytes_of_widths<2>(dim, value_dim);
        default: return bytes_of_widths<3>(dim, value_dim);
    }
}

int best_segments(Int batch_heads, Int sequences, Int length, Int dim, Int value_dim, int multiprocessors) {
    (void)dim;
    const Int slices = (value_dim + 63) / 64, blocks = batch_heads * (slices > 0 ? slices : 1);
    const Int average = sequences > 0 ? length / sequences : 0;
    // A wave: as many blocks as run side by side. Where there are as many anyway, cutting only reads keys twice.
    const Int wave = 2 * Int(multiprocessors);
    if (blocks == 0 || 2 * blocks >= wave) return 1;
    // A segment of fewer chunks would cost more in states than it gains.
    constexpr Int least = 4 * segment_grain;
    const Int most = average / least, wanted = wave / blocks;
    return static_cast<int>(most < 1 ? 1 : wanted < most ? wanted : most);
}

}  // namespace linattn
