#include "product.h"

namespace linattn {

Status start_product_2(const Product& call, const Start& start) { return start_product_of<2>(call, start); }

}  // namespace linattn
