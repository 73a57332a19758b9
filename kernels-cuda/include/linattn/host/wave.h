// How much of a GPU a launch fills.
#pragma once

#include "linattn/calls.h"

namespace linattn {

// The blocks of a launch, and how many of them a multiprocessor runs side by side.
struct Wave {
    Int blocks = 0;
    int resident = 1;

    // Becomes the other if that fills more of a GPU.
    void take(const Wave& other) {
        if (other.resident > 0 && other.blocks * resident > blocks * other.resident) *this = other;
    }
};

// Where a kernel is launched. With a `wave`, it is not launched, but taken into this.
struct Start {
    void* stream;
    Wave* wave;
};

}  // namespace linattn
