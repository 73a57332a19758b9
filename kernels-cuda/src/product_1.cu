#include "product.h"

namespace linattn {

Status launch_product_1(const Product& call, void* stream) { return launch_product_of<1>(call, stream); }
Status resident_1(Int width, bool derivatives, int* blocks) { return resident_of<1>(width, derivatives, blocks); }

}  // namespace linattn
