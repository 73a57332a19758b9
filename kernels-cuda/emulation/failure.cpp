// How a kernel is aborted: the message that `launch` throws, and the switch back to the host. The fibers are abandoned
// where they are; their stacks are used again.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "emulation/block.hpp"

namespace linattn::emulation {
namespace {

const char* name_of(Wait wait) {
    switch (wait) {
        case Wait::warp_barrier: return "the warp barrier";
        case Wait::shuffle: return "shuffle";
        case Wait::shuffle_xor: return "shuffle_xor";
        case Wait::matrices: return "load_matrices";
        case Wait::matrices_transposed: return "load_matrices_transposed";
        case Wait::multiply: return "multiply_bf16";
        case Wait::barrier: return "the block barrier";
        case Wait::nothing:
        case Wait::end: break;
    }
    return "the end";
}

const char* base_name(const char* file) {
    const char* slash = std::strrchr(file, '/');
    return slash != nullptr ? slash + 1 : file;
}

}  // namespace

void Block::give_up(Place place, const char* format, va_list values) {
    const Fiber& self = current_fiber();
    int length = std::snprintf(error_, sizeof error_, "Kernel %s, block (%lld, %d), %s:%d: ", launch_->name,
                               self.block_x, self.block_y, base_name(place.file), place.line);
    const auto add = [&](int written) { length = std::min<int>(length + written, sizeof error_ - 1); };
    add(0);
    add(std::vsnprintf(error_ + length, sizeof error_ - length, format, values));
    std::snprintf(error_ + length, sizeof error_ - length, ".");
    switch_context(current_fiber().context, host_);
    std::abort();
}

void Block::give_up(Wait wait, Place place, const Fiber& other) {
    const char* all = wait == Wait::barrier ? "threads of the block" : "lanes of the warp";
    const int count = wait == Wait::barrier ? threads_ : 32;
    if (other.wait == Wait::end) {
        fail(place, "%s was expected to be reached by all %d %s, and thread %d has left the kernel", name_of(wait),
             count, all, other.thread);
    }
    fail(place, "%s was expected to be reached by all %d %s, and thread %d is at %s, %s:%d", name_of(wait), count, all,
         other.thread, name_of(other.wait), base_name(other.place.file), other.place.line);
}

// No fiber can run: some wait for others that wait elsewhere or have left.
void Block::report_stuck() {
    for (const Fiber& fiber : fibers_) {
        const Warp& warp = *fiber.warp;
        if (warp.arrived > 0 && (fiber.wait == Wait::end || fiber.wait == Wait::barrier)) {
            give_up(warp.wait, warp.place, fiber);
        }
    }
    for (const Fiber& fiber : fibers_) {
        if (fiber.wait != Wait::barrier) give_up(Wait::barrier, place_, fiber);
    }
    std::abort();
}

void fail(Place place, const char* format, ...) {
    va_list values;
    va_start(values, format);
    current_block->give_up(place, format, values);
}

}  // namespace linattn::emulation
