// The sanitizers' interface for fibers. The functions are null unless the program is linked with that sanitizer, so
// that the runtime itself is compiled without any.
#pragma once

#include <cstddef>

extern "C" {
void* __tsan_get_current_fiber() __attribute__((weak));
void* __tsan_create_fiber(unsigned flags) __attribute__((weak));
void __tsan_destroy_fiber(void* fiber) __attribute__((weak));
void __tsan_switch_to_fiber(void* fiber, unsigned flags) __attribute__((weak));
void __tsan_acquire(void* tag) __attribute__((weak));
void __tsan_release(void* tag) __attribute__((weak));
void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom, std::size_t size) __attribute__((weak));
void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom, std::size_t* size) __attribute__((weak));
void __asan_unpoison_memory_region(const volatile void* memory, std::size_t size) __attribute__((weak));
}

namespace linattn::emulation {

inline bool threads_watched() { return __tsan_switch_to_fiber != nullptr; }
inline bool addresses_watched() { return __sanitizer_start_switch_fiber != nullptr; }

// What was written before a release of the tag is seen after an acquire of it.
inline void release(void* tag) {
    if (threads_watched()) __tsan_release(tag);
}
inline void acquire(void* tag) {
    if (threads_watched()) __tsan_acquire(tag);
}

}  // namespace linattn::emulation
