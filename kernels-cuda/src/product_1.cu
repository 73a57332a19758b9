#include "lean.h"
#include "product.h"

namespace linattn {

Status start_product_1(const Product& call, const Start& start) {
    return is_lean(call) ? start_lean(call, start) : start_product_of<1>(call, start);
}

}  // namespace linattn
