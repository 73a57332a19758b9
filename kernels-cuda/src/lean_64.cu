#include "lean_start.h"

namespace linattn {

Status start_lean_64(const Product& call, const Start& start) { return start_lean_of<64>(call, start); }

}  // namespace linattn
