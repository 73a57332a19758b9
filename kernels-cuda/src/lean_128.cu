#include "lean_launch.h"

namespace linattn {

Status launch_lean_128(const Product& call, void* stream) { return launch_lean_of<128>(call, stream); }
Status resident_lean_128(int* blocks) { return resident_lean_of<128>(blocks); }

}  // namespace linattn
