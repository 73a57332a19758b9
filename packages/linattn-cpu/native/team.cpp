#include "team.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif

#include "cores.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace linattn {

namespace {

// How many turns a waiting loop takes before the thread sleeps: about 40 microseconds, a few times the cost of
// sleeping and waking. Helpers wait longer for the next call, because steps often follow each other at once.
constexpr int kSpins = 2000, kIdleSpins = 25000;

void pause_core() {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Where threads wait until a condition on sequentially consistent atomic variables holds: with weaker loads and stores, a
// thread could miss a change and sleep.
class Signal {
public:
    template <class Condition>
    void wait(int spins, const Condition& holds) {
        for (int i = 0; i < spins; ++i) {
            if (holds()) return;
            pause_core();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        ++sleepers_;
        // wait() without a time limit is a function of GCC 12's libstdc++, which a wheel would then need.
        while (!changed_.wait_for(lock, std::chrono::hours(1), holds)) {
        }
        --sleepers_;
    }

    // Call this after every change that a thread may wait for.
    void notify() {
        notify_if([] { return true; });
    }

    // The same, where threads wait for one condition: they are not woken before it holds.
    template <class Condition>
    void notify_if(const Condition& holds) {
        if (sleepers_ == 0 || !holds()) return;
        {
            const std::lock_guard<std::mutex> lock(mutex_);
        }
        changed_.notify_all();
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::atomic<int> sleepers_{0};
};

// One part of every phase. Only its own member reads and writes `taken`, unless that member does not come: its cache line
// stays with that core, which takes the part without a message to others. Some processors fetch pairs of lines, so lines
// that different cores write to are two apart.
struct Part {
    alignas(128) std::atomic<long long> taken{0};  // the number of phases in which it has been taken
    alignas(128) std::atomic<long long> done{0};   // the number of phases in which it has been finished
    std::atomic<bool> expected{false};             // whether its own member is expected to take it
};

}  // namespace

struct Phases {
    explicit Phases(int parts) : parts(new Part[parts]) {}

    std::unique_ptr<Part[]> parts;
    Signal progress;
};

namespace {

bool is_done(const Part& part, const Member& member) { return part.done > member.phase; }

bool are_all_done(const Member& member) {
    for (int i = 0; i < member.parts; ++i) {
        if (!is_done(member.phases->parts[i], member)) return false;
    }
    return true;
}

bool take(Member& member, int index) {
    std::atomic<long long>& taken = member.phases->parts[index].taken;
    long long before = member.phase;
    if (taken.load(std::memory_order_relaxed) != before || !taken.compare_exchange_strong(before, before + 1)) {
        return false;
    }
    member.part = index;
    return true;
}

// Whose part a member may take before its own member does.
enum class Others { unexpected, all };

// Takes a part that its own member has not taken.
bool take_from(Others others, Member& member) {
    for (int i = 1; i < member.parts; ++i) {
        const int index = (member.rank + i) % member.parts;
        Part& part = member.phases->parts[index];
        if (others == Others::unexpected && part.expected.load(std::memory_order_relaxed)) continue;
        if (is_done(part, member) || !take(member, index)) continue;
        part.expected.store(false, std::memory_order_relaxed);
        return true;
    }
    return false;
}

}  // namespace

int next_part(Member& member) {
    Phases& phases = *member.phases;
    if (member.part >= 0) {
        phases.parts[member.part].done = member.phase + 1;
        phases.progress.notify_if([&] { return are_all_done(member); });
    }
    Part& own = phases.parts[member.rank];
    if (!own.expected.load(std::memory_order_relaxed)) own.expected.store(true, std::memory_order_relaxed);
    if (take(member, member.rank) || take_from(Others::unexpected, member)) return member.part;
    // The others get time to take their parts. Waiting is worth it: they have the parts' weights in their caches, and
    // two parts one after the other take twice as long. A member that did not come is not expected again until it is
    // back.
    for (int i = 0; i < kSpins && !are_all_done(member); ++i) pause_core();
    if (!are_all_done(member)) {
        if (take_from(Others::all, member)) return member.part;
        phases.progress.wait(0, [&] { return are_all_done(member); });
    }
    ++member.phase;
    return member.part = -1;
}

namespace {

// A call that helpers may join until it is closed.
struct Job {
    Job(int threads, const std::function<void(int rank)>& work) : threads(threads), work(work) {}

    const int threads;
    const std::function<void(int rank)>& work;  // the caller's; valid while the job is open or a helper is inside
    int joined = 1;                             // threads, the caller included; guarded by the pool
    std::atomic<int> inside{0};                 // helpers that work on the job
    Signal emptied;
};

// Helper threads, which sleep while there is no job. A pool is never destroyed, because helpers may sleep in it when
// the process ends.
class Pool {
public:
    // Throws std::bad_alloc.
    void open(const std::shared_ptr<Job>& job) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            while (helpers_ < job->threads - 1 && add_helper()) ++helpers_;
            jobs_.push_back(job);
            ++opened_;
        }
        posted_.notify();
    }

    // Returns when no helper works on the job.
    void close(const std::shared_ptr<Job>& job) {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            jobs_.erase(std::find(jobs_.begin(), jobs_.end(), job));
        }
        job->emptied.wait(kSpins, [&] { return job->inside == 0; });
    }

private:
    // If the system cannot start a thread, the caller does all of the work.
    bool add_helper() {
        try {
            std::thread([this] { help(); }).detach();
        } catch (const std::system_error&) {
            return false;
        }
        return true;
    }

    void help() {
        for (;;) {
            const long long seen = opened_;
            int rank = 0;
            if (const std::shared_ptr<Job> job = join(rank)) {
                job->work(rank);
                --job->inside;
                job->emptied.notify();
            } else {
                posted_.wait(kIdleSpins, [&] { return opened_ != seen; });
            }
        }
    }

    std::shared_ptr<Job> join(int& rank) {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (const std::shared_ptr<Job>& job : jobs_) {
            if (job->joined == job->threads) continue;
            rank = job->joined++;
            ++job->inside;
            return job;
        }
        return nullptr;
    }

    std::mutex mutex_;
    std::vector<std::shared_ptr<Job>> jobs_;
    int helpers_ = 0;
    std::atomic<long long> opened_{0};
    Signal posted_;
};

// The pool of the process. A forked child gets a new pool, because it has none of its parent's threads, but perhaps
// locks that they held.
Pool& pool() {
    static Pool* live = new Pool;
#if defined(__unix__) || defined(__APPLE__)
    static const int registered = pthread_atfork(nullptr, nullptr, [] { live = new Pool; });
    (void)registered;
#endif
    return *live;
}

// Calls work(rank) on this thread, with rank 0, and on available helpers.
void run_with_helpers(int threads, const std::function<void(int rank)>& work) {
    if (threads == 1) return work(0);
    const auto job = std::make_shared<Job>(threads, work);
    Pool& helpers = pool();
    helpers.open(job);
    work(0);
    helpers.close(job);
}

}  // namespace

void run_phases(int parts, void (*work)(void*, Member&), void* context) {
    Phases phases(parts);
    run_with_helpers(parts, [&](int rank) {
        Member member{rank, parts, &phases, 0, -1};
        work(context, member);
    });
}

void run_team(int threads, void (*work)(void*, const Worker&), void* context) {
    const int count = team_size(threads);
    long long next = 0;
    if (count == 1) return work(context, {0, &next});
#ifdef _OPENMP
#pragma omp parallel num_threads(count)
    work(context, {omp_get_thread_num(), &next});
#else
    run_with_helpers(count, [&](int rank) { work(context, {rank, &next}); });
#endif
}

}  // namespace linattn
