#include "team.hpp"

#include <memory>

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#include <vector>
#endif

#include <sched.h>

namespace linattn {

namespace {

// Spinning is quicker than asking the system, until a thread is waited for that has no core.
constexpr int kSpins = 2000;

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void wait_at(Barrier& barrier, int count) {
    if (count == 1) return;
    const int phase = __atomic_load_n(&barrier.phase, __ATOMIC_RELAXED);
    if (__atomic_add_fetch(&barrier.arrived, 1, __ATOMIC_ACQ_REL) == count) {
        __atomic_store_n(&barrier.arrived, 0, __ATOMIC_RELAXED);
        __atomic_store_n(&barrier.phase, phase + 1, __ATOMIC_RELEASE);
        return;
    }
    for (int spins = 0; __atomic_load_n(&barrier.phase, __ATOMIC_ACQUIRE) == phase; ++spins) {
        if (spins < kSpins) {
            pause_core();
        } else {
            sched_yield();
        }
    }
}

void run_team(int threads, void (*work)(void*, const Worker&), void* context) {
    if (threads < 1) threads = 1;
    std::unique_ptr<Barrier[]> barriers(new Barrier[threads]());
    long long next = 0;
    if (threads == 1) {
        work(context, Worker{0, 1, barriers.get(), &next});
        return;
    }
#ifdef _OPENMP
    // OpenMP may give fewer threads than were asked for; each learns how many there are.
#pragma omp parallel num_threads(threads)
    work(context, Worker{omp_get_thread_num(), omp_get_num_threads(), barriers.get(), &next});
#else
    std::vector<std::thread> others;
    for (int rank = 1; rank < threads; ++rank) {
        others.emplace_back([&, rank] { work(context, Worker{rank, threads, barriers.get(), &next}); });
    }
    work(context, Worker{0, threads, barriers.get(), &next});
    for (auto& other : others) other.join();
#endif
}

}  // namespace linattn
