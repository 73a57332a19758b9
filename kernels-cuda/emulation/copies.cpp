// Asynchronous copies: a queue for each thread, from which a wait takes the copies that must have arrived.
#include <atomic>
#include <cstdint>

#include "emulation/block.hpp"

namespace linattn::emulation {

namespace {

std::atomic<Int> copied_bytes{0};

}  // namespace

Int take_copied_bytes() { return copied_bytes.exchange(0); }

void check_shared(const void* address, int bytes, const char* function, Place place) {
    const long long offset = static_cast<const unsigned char*>(address) - running->shared;
    const int size = current_block->launch().shared;
    if (offset < 0 || offset + bytes > size) {
        fail(place, "%s was expected to get %d bytes within the block's %d bytes of shared memory, and got byte %lld",
             function, bytes, size, offset);
    }
    if (offset % bytes != 0) {
        fail(place, "%s was expected to get an address in shared memory aligned to %d bytes, and got byte %lld",
             function, bytes, offset);
    }
}

void start_copy(void* shared, const void* global, int size, int bytes, Place place) {
    const char* function = size == 16 ? "copy16" : "copy4";
    check_shared(shared, size, function, place);
    const auto beyond = static_cast<int>(reinterpret_cast<std::uintptr_t>(global) % size);
    if (beyond != 0) {
        fail(place, "%s was expected to read from an address aligned to %d bytes, and got one that is %d bytes further",
             function, size, beyond);
    }
    if (bytes < 0 || bytes > size) {
        fail(place, "%s: expected to read 0 to %d bytes, got %d", function, size, bytes);
    }
    copied_bytes += bytes;
    Fiber& self = current_fiber();
    if (self.copy_end - self.first_copy == Fiber::most_copies) {
        fail(place, "a thread was expected to have at most %d copies under way, as many as the emulation keeps",
             Fiber::most_copies);
    }
    self.copies[self.copy_end++ % Fiber::most_copies] = {shared, global, size, bytes, self.groups, place};
}

void commit_copies() { ++current_fiber().groups; }

bool take_copy(int pending, Copy& copy) {
    Fiber& self = current_fiber();
    if (self.first_copy == self.copy_end) return false;
    const Copy& oldest = self.copies[self.first_copy % Fiber::most_copies];
    if (oldest.group >= self.groups - pending) return false;
    copy = oldest;
    ++self.first_copy;
    return true;
}

}  // namespace linattn::emulation
