#include "lean_start.h"

namespace linattn {

Status start_lean_queries(const Product& call, const Start& start) {
    return start_lean_of<gradient_width, Walk::queries>(call, start);
}
Status start_lean_queries_summed(const Product& call, const Start& start) {
    return start_lean_of<gradient_width, Walk::queries_summed>(call, start);
}

}  // namespace linattn
