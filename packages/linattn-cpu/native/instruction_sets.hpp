// The builds of the kernels in this module, one per instruction set, and the one in use.
#pragma once

#include <string>
#include <vector>

#include "calls.hpp"

namespace linattn {

// The names of the sets that this machine has, fastest first, whether the module has kernels for them or not.
const std::vector<std::string>& machine_sets();

// The builds that this machine can run, fastest first; the last, "baseline", always exists.
std::vector<const Kernels*> usable_kernels();

// The kernels in use; by default the fastest.
const Kernels& live_kernels();

// Selects another build, for tests and measurements.
// Throws std::invalid_argument if this machine cannot run it or the module does not hold it.
void use_instruction_set(const std::string& name);

}  // namespace linattn
