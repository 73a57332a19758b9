#include "lean_start.h"

namespace linattn {

Status start_lean_128(const Product& call, const Start& start) { return start_lean_of<128>(call, start); }

}  // namespace linattn
