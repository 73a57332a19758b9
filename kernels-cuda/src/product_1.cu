#include "lean.h"
#include "product.h"

namespace linattn {

Status launch_product_1(const Product& call, void* stream) {
    return is_lean(call) ? launch_lean(call, stream) : launch_product_of<1>(call, stream);
}

Status resident_1(Int width, bool derivatives, int* blocks) {
    // Forward, most calls of this width run the lean kernel.
    if (width == 64 && !derivatives) {
        const Status status = resident_lean(blocks);
        if (status.error != 0 || *blocks > 0) return status;
    }
    return resident_of<1>(width, derivatives, blocks);
}

}  // namespace linattn
