#include "lean.h"
#include "product.h"

namespace linattn {

Status launch_product_1(const Product& call, void* stream) {
    if (is_lean(call)) return launch_lean(call, stream);
    return is_lean_gradient(call) ? launch_lean_gradient(call, stream) : launch_product_of<1>(call, stream);
}

Status resident_1(Int width, bool derivatives, int* blocks) {
    // Forward, most calls of these widths run the lean kernel.
    if (!derivatives && is_lean_width(width, width)) return resident_lean(width, blocks);
    if (derivatives && has_lean_gradients(width, width)) return resident_lean_gradients(blocks);
    return resident_of<1>(width, derivatives, blocks);
}

}  // namespace linattn
