#include "lean_launch.h"

namespace linattn {

Status launch_lean_pair(const Product& call, void* stream) {
    return launch_lean_of<gradient_width, Walk::pair>(call, stream);
}
Status launch_lean_query_sums(const Product& call, void* stream) {
    return launch_lean_of<gradient_width, Walk::query_sums>(call, stream);
}

}  // namespace linattn
