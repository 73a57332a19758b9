// What CUDA refused, as an exception that says what was asked for and names the error.
#pragma once

#include <string>

#include "linattn/calls.h"

namespace linattn {

// Throws std::runtime_error "<what> failed: <error>" unless the code is 0.
void expect_success(const std::string& what, int error);

// The same of a launch, by the kernel's name. What goes wrong while a kernel runs comes up later, in torch.
void expect_launched(const Status& status);

}  // namespace linattn
