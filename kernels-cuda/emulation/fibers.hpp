// Fibers: stacks of their own, and the switch from one to another within one thread of the host.
#pragma once

#include <cstddef>

#include "emulation/sanitizers.hpp"

// LINATTN_UCONTEXT asks for the slow way where there is a fast one.
#if defined(__x86_64__) && defined(__ELF__) && !defined(LINATTN_UCONTEXT)
#define LINATTN_ASSEMBLY_SWITCH
#else
#include <ucontext.h>
#endif

namespace linattn::emulation {

// Stacks for a number of fibers, each above a page that may not be touched.
class Stacks {
public:
    explicit Stacks(int count);
    ~Stacks();
    Stacks(const Stacks&) = delete;

    static constexpr std::size_t size = 128 << 10;
    unsigned char* bottom(int index) const;

private:
    unsigned char* memory_;
    int count_;
};

// Where a fiber, or the host, goes on when it is switched to.
struct Context {
#ifdef LINATTN_ASSEMBLY_SWITCH
    void* stack_pointer = nullptr;
#else
    ucontext_t registers;
#endif
    const void* bottom = nullptr;
    std::size_t size = 0;
    void* fake_stack = nullptr;  // AddressSanitizer's
    void* watched = nullptr;     // ThreadSanitizer's fiber
};

// Makes a context that runs `entry`, which must not return, on a stack. `color` moves its start, so that the hot ends
// of many stacks do not share the same few lines of the cache.
void prepare(Context& context, unsigned char* bottom, int color, void (*entry)());

#ifdef LINATTN_ASSEMBLY_SWITCH
extern "C" void linattn_emulation_switch(void** from, void* to) __attribute__((visibility("hidden")));
#endif

// Leaves `from`, which goes on from here when it is switched to; an abandoned one never is.
inline void switch_context(Context& from, Context& to, bool abandoned = false) {
    if (threads_watched()) __tsan_switch_to_fiber(to.watched, 1);  // 1: without synchronization
    if (addresses_watched()) __sanitizer_start_switch_fiber(abandoned ? nullptr : &from.fake_stack, to.bottom, to.size);
#ifdef LINATTN_ASSEMBLY_SWITCH
    linattn_emulation_switch(&from.stack_pointer, to.stack_pointer);
#else
    swapcontext(&from.registers, &to.registers);
#endif
    if (addresses_watched()) __sanitizer_finish_switch_fiber(from.fake_stack, nullptr, nullptr);
}

// To be called first in an `entry`; `host` is the context that the first fiber of all was entered from.
void entered(Context& host);

}  // namespace linattn::emulation
