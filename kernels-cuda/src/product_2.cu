#include "product.h"

namespace linattn {

Status launch_product_2(const Product& call, void* stream) { return launch_product_of<2>(call, stream); }
Status resident_2(Int width, bool derivatives, int* blocks) { return resident_of<2>(width, derivatives, blocks); }

}  // namespace linattn
