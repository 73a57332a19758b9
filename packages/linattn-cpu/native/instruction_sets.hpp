// The builds of the kernels that are in this module, and the one that this machine runs.
#pragma once

#include <string>
#include <vector>

#include "calls.hpp"

namespace linattn {

// The builds that this machine can run, fastest first; the last is always there.
std::vector<const Kernels*> usable_kernels();

// The kernels in use: the fastest at first.
const Kernels& live_kernels();

// Makes another build the live one, for tests and measurements.
// Throws std::invalid_argument if this machine cannot run it or the module does not hold it.
void use_instruction_set(const std::string& name);

}  // namespace linattn
