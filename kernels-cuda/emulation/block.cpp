#include "emulation/block.hpp"

#include <new>

#include "emulation/order.hpp"

namespace linattn::emulation {
namespace {

void run_fiber() {
    Block& block = *current_block;
    block.begin();
    block.launch().body(block.launch().thread);
    block.leave(current_fiber());
}

// NaN everywhere. The compiler must not turn the loop into memset: ThreadSanitizer would take its memset for a write by
// the host during the launch.
void poison(unsigned char* memory, int bytes) {
    int i = 0;
    for (; i + 64 <= bytes; i += 64) {
        const unsigned long long ones[8] = {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull};
        __builtin_memcpy(memory + i, ones, sizeof ones);
        asm volatile("" ::: "memory");
    }
    for (; i < bytes; ++i) {
        memory[i] = 0xff;
        asm volatile("" ::: "memory");
    }
}

}  // namespace

Block::Block(int threads) : threads_(threads), fibers_(threads), warps_(threads / 32), stacks_(threads) {
    for (Fiber& fiber : fibers_) fiber.copies.reset(new Copy[Fiber::most_copies]);
}

void Block::open(const Launch& launch) {
    launch_ = &launch;
    host_ = Context{};
    if (threads_watched()) host_.watched = __tsan_get_current_fiber();
    void* memory = nullptr;
    if (posix_memalign(&memory, 128, launch.shared) != 0) throw std::bad_alloc();
    shared_.reset(static_cast<unsigned char*>(memory));
}

void Block::close() {
    acquire(&end_tag_);
    shared_ = nullptr;
}

const char* Block::run(Int x, int y, int order) {
    poison(shared_.get(), launch_->shared);
    arrived_ = finished_ = phase_ = 0;
    error_[0] = '\0';
    start_fibers(x, y, order);
    current_block = this;
    running = &fibers_[0];
    release(&start_tag_);
    switch_context(host_, fibers_[0].context);
    release_fibers();
    return error_[0] != '\0' ? error_ : nullptr;
}

void Block::start_fibers(Int x, int y, int order) {
    const Order warps(order, threads_ / 32), lanes(order, 32);
    for (int i = 0; i < threads_; ++i) {
        Fiber& fiber = fibers_[i];
        fiber.warp = &warps_[i / 32];
        fiber.position = i % 32;
        fiber.lane = lanes.at[i % 32];
        fiber.thread = 32 * warps.at[i / 32] + fiber.lane;
        fiber.block_x = x;
        fiber.block_y = y;
        fiber.shared = shared_.get();
        fiber.wait = Wait::nothing;
        fiber.first_copy = fiber.copy_end = 0;
        fiber.groups = 0;
        prepare(fiber.context, stacks_.bottom(i), i, run_fiber);
        if (threads_watched() && fiber.context.watched == nullptr) fiber.context.watched = __tsan_create_fiber(0);
    }
    for (int i = 0; i < threads_ / 32; ++i) {
        warps_[i].ready = ~0u;
        warps_[i].arrived = warps_[i].phase = 0;
        warps_[i].index = i;
    }
}

// Publishes what the fibers wrote to whoever acquires the end tag. The fibers of an aborted kernel are not used again:
// for ThreadSanitizer they are still inside it.
void Block::release_fibers() {
    if (!threads_watched()) return;
    for (Fiber& fiber : fibers_) {
        __tsan_switch_to_fiber(fiber.context.watched, 1);
        release(&end_tag_);
        __tsan_switch_to_fiber(host_.watched, 1);
        if (finished_ == threads_) continue;
        __tsan_destroy_fiber(fiber.context.watched);
        fiber.context.watched = nullptr;
    }
    if (finished_ < threads_) acquire(&end_tag_);  // the sentence was written by a fiber
}

void Block::begin() {
    entered(host_);
    acquire(&start_tag_);
    acquire(&end_tag_);
}

Fiber& Block::next(const Fiber& self) {
    const int own = self.warp->index, count = threads_ / 32;
    const u32 after = self.warp->ready & ~((2u << self.position) - 1u);
    if (after != 0) return fibers_[32 * own + __builtin_ctz(after)];
    for (int i = 0; i < count; ++i) {
        const int warp = own + i < count ? own + i : own + i - count;
        if (warps_[warp].ready != 0) return fibers_[32 * warp + __builtin_ctz(warps_[warp].ready)];
    }
    report_stuck();
}

void Block::suspend(Fiber& self) {
    Fiber& to = next(self);
    running = &to;
    switch_context(self.context, to.context);
}

void Block::arrive(Fiber& self, Place place) {
    self.wait = Wait::barrier;
    self.place = place;
    if (arrived_ == 0) place_ = place;
    if (elsewhere(place, place_)) give_up(Wait::barrier, place_, self);
    long long& tag = tags_[phase_ & 1];
    release(&tag);
    self.warp->ready &= ~(1u << self.position);
    if (++arrived_ < threads_) {
        suspend(self);
    } else {
        arrived_ = 0;
        ++phase_;
        for (Warp& warp : warps_) warp.ready = ~0u;
    }
    acquire(&tag);
}

void Block::leave(Fiber& self) {
    self.wait = Wait::end;
    if (self.first_copy != self.copy_end) {
        fail(self.copies[self.first_copy % Fiber::most_copies].place,
             "every copy was expected to be waited for, and thread %d left the kernel with this one under way",
             self.thread);
    }
    self.warp->ready &= ~(1u << self.position);
    Context* to = &host_;
    if (++finished_ < threads_) {
        Fiber& other = next(self);
        running = &other;
        to = &other.context;
    }
    switch_context(self.context, *to, true);
    std::abort();  // nobody returns to a fiber that has ended
}

void block_barrier(Place place) { current_block->arrive(current_fiber(), place); }

}  // namespace linattn::emulation
