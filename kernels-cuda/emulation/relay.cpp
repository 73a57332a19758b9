// Messages between blocks through global memory.
#include "emulation/block.hpp"

namespace linattn::emulation {

// As an atomic addition: it orders nothing.
int next_ticket(int* counter) { return (*counter)++; }

void announce(int* flag) {
    release(flag);
    *flag = 1;
}

void await(const int* flag, Place place) {
    if (*flag == 0) {
        fail(place, "await was expected to find its flag set by a block that ran before, and block (%lld, %d) did not",
             running->block_x, running->block_y);
    }
    acquire(const_cast<int*>(flag));
}

}  // namespace linattn::emulation
