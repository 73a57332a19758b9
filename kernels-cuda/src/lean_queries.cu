#include "lean_start.h"

namespace linattn {

Status start_lean_queries(const Product& call, const Start& start) {
    return start_lean_of<gradient_width, Walk::queries>(call, start);
}

}  // namespace linattn
