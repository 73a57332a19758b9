#include "product.h"

namespace linattn {

Status launch_product_3(const Product& call, void* stream) { return launch_product_of<3>(call, stream); }

}  // namespace linattn
