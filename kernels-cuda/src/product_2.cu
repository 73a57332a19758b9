#include "product.h"

namespace linattn {

Status launch_product_2(const Product& call, void* stream) { return launch_product_of<2>(call, stream); }

}  // namespace linattn
