#include "lean_launch.h"

namespace linattn {

Status launch_lean_64(const Product& call, void* stream) { return launch_lean_of<64>(call, stream); }
Status resident_lean_64(int* blocks) { return resident_lean_of<64>(blocks); }

}  // namespace linattn
