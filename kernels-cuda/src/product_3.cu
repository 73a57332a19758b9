#include "product.h"

namespace linattn {

Status start_product_3(const Product& call, const Start& start) { return start_product_of<3>(call, start); }

}  // namespace linattn
