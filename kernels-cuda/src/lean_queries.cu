#include "lean_launch.h"

namespace linattn {

using Elu = LeanShape<64, FeatureMap::elu, Walk::queries>;

Status launch_lean_queries(const Product& call, void* stream) {
    return launch_lean_of<64, Walk::queries>(call, stream);
}
Status resident_lean_gradients(int* blocks) {
    return LINATTN_RESIDENT("lean_product", lean_product<Elu>, Elu::threads, Elu::shared_bytes, blocks);
}

}  // namespace linattn
