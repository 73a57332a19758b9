// Kernels that are wrong on purpose, to show that the sanitizers report them.
#pragma once

namespace linattn::testing {

// Runs the fault of that name. Returns 2 if there is none, and 0 if no sanitizer stopped it.
int run_fault(const char* name);

}  // namespace linattn::testing
