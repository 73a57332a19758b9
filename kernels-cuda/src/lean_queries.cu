#include "lean_launch.h"

namespace linattn {

Status launch_lean_queries(const Product& call, void* stream) {
    return launch_lean_of<gradient_width, Walk::queries>(call, stream);
}
Status resident_lean_gradients(int* blocks) {
    using Shape = WidestGradient;
    return LINATTN_RESIDENT("lean_product", lean_product<Shape>, Shape::threads, Shape::shared_bytes, blocks);
}

}  // namespace linattn
