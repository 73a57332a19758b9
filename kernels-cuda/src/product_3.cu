#include "product.h"

namespace linattn {

Status launch_product_3(const Product& call, void* stream) { return launch_product_of<3>(call, stream); }
Status resident_3(Int width, bool derivatives, int* blocks) { return resident_of<3>(width, derivatives, blocks); }

}  // namespace linattn
