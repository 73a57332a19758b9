#include "lean_start.h"

namespace linattn {

Status start_lean_pair(const Product& call, const Start& start) {
    return start_lean_of<gradient_width, Walk::pair>(call, start);
}
Status start_lean_query_sums(const Product& call, const Start& start) {
    return start_lean_of<gradient_width, Walk::query_sums>(call, start);
}

}  // namespace linattn
