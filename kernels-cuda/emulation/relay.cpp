// Messages between blocks through global memory.
#include "emulation/block.hpp"

namespace linattn::emulation {

// As an atomic addition: it orders nothing.
int next_ticket(int* counter) { return (*counter)++; }

void announce(int* number, int value) {
    release(number);
    *number = value;
}

void await(const int* number, int value, Place place) {
    if (*number < value) {
        fail(place, "await was expected to find %d, written by a block that ran before, and block (%lld, %d) found %d",
             value, running->block_x, running->block_y, *number);
    }
    acquire(const_cast<int*>(number));
}

}  // namespace linattn::emulation
