#include "memory.hpp"

#include <cstdlib>
#include <new>

#include "team.hpp"

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace linattn {

Scratch::Scratch(std::int64_t bytes) {
    constexpr std::int64_t line = 64;
    const std::int64_t size = round_up(bytes > 0 ? bytes : 1, line);
    memory_ = size > PTRDIFF_MAX ? nullptr : std::aligned_alloc(line, static_cast<std::size_t>(size));
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

#if defined(__linux__) && defined(MADV_HUGEPAGE)
namespace {

constexpr std::uintptr_t huge_page = 2 << 20;
// By default, glibc takes memory of this size from the system for every new tensor; smaller pieces it uses again.
constexpr std::uintptr_t always_new = 32 << 20;

// Has the system provide huge pages, which threads take one by one.
void touch(std::uintptr_t low, std::uintptr_t count, int threads) {
#ifdef MADV_POPULATE_WRITE
    struct Context {
        std::uintptr_t low, count;
    } context{low, count};
    run_team(
        threads,
        [](void* shared, const Worker& worker) {
            const Context& pages = *static_cast<Context*>(shared);
            for (;;) {
                const auto page = static_cast<std::uintptr_t>(__atomic_fetch_add(worker.next, 1, __ATOMIC_RELAXED));
                if (page >= pages.count) return;
                madvise(reinterpret_cast<void*>(pages.low + page * huge_page), huge_page, MADV_POPULATE_WRITE);
            }
        },
        &context);
#else
    (void)low, (void)count, (void)threads;
#endif
}

}  // namespace

void expect_writes(void* tensor, std::int64_t bytes, int threads) {
    const auto start = reinterpret_cast<std::uintptr_t>(tensor);
    const std::uintptr_t low = (start + huge_page - 1) / huge_page * huge_page, end = start + bytes;
    if (tensor == nullptr || end < low + huge_page) return;
    const std::uintptr_t count = (end - low) / huge_page;
    // This is only advice: if the system refuses it, results are the same.
    madvise(reinterpret_cast<void*>(low), count * huge_page, MADV_HUGEPAGE);
    if (static_cast<std::uintptr_t>(bytes) >= always_new) touch(low, count, threads);
}
#else
void expect_writes(void*, std::int64_t, int) {}
#endif

}  // namespace linattn
