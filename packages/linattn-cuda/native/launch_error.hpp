// What CUDA refused, as an exception that says what was asked for and names the error.
#pragma once

#include <string>

#include "linattn/calls.h"

namespace linattn {

// Throws std::runtime_error "<what> failed: <error>" unless the code is 0.
void expect_success(const std::string& what, int error);

// Throws "<what> of kernel <its name> failed: <error>" unless the status is a success. What goes wrong while a kernel
// runs is reported later, by torch.
void expect_success(const std::string& what, const Status& status);

}  // namespace linattn
