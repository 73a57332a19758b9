#include "product.h"

namespace linattn {

Status launch_product_3(const Product& call, void* stream) { return launch_product_of<3>(call, stream); }
Status resident_3(Int width, int* blocks) { return resident_of<3>(width, blocks); }

}  // namespace linattn
