#include "memory.hpp"

#include <cstdlib>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace linattn {

Scratch::Scratch(std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    memory_ = std::aligned_alloc(line, static_cast<std::size_t>(round_up(bytes > 0 ? bytes : 1, line)));
    if (memory_ == nullptr) throw std::bad_alloc();
}

Scratch::~Scratch() { std::free(memory_); }

std::int64_t first_level_cache() {
#ifdef _SC_LEVEL1_DCACHE_SIZE
    static const long bytes = sysconf(_SC_LEVEL1_DCACHE_SIZE);
    if (bytes > 0) return bytes;
#endif
    return 32 << 10;
}

void expect_writes(void* tensor, std::int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    constexpr std::uintptr_t page = 2 << 20;
    const auto start = reinterpret_cast<std::uintptr_t>(tensor);
    const std::uintptr_t low = (start + page - 1) / page * page, high = (start + bytes) / page * page;
    // This is only advice: if the system refuses it, results are the same.
    if (tensor != nullptr && low < high) madvise(reinterpret_cast<void*>(low), high - low, MADV_HUGEPAGE);
#else
    (void)tensor, (void)bytes;
#endif
}

}  // namespace linattn
