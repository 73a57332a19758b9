// Kernels that are wrong on purpose, to show that the sanitizers see it.
#pragma once

namespace linattn::testing {

// Runs the fault of that name. Returns 2 when there is none, and 0 when it ran to its end: then nobody saw it.
int run_fault(const char* name);

}  // namespace linattn::testing
