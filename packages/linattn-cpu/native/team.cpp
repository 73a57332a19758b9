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

// Where threads wait until a condition on atomic variables holds.
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
        if (sleepers_ == 0) return;
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

struct alignas(64) Claim {
    std::atomic<long long> phases{0};   // the number of phases in which this part has been taken
    std::atomic<bool> expected{false};  // whether the member of this rank is expected to take it
};

}  // namespace

struct Phases {
    explicit Phases(int parts) : claims(new Claim[parts]) {}

    std::unique_ptr<Claim[]> claims;
    alignas(64) std::atomic<long long> done{0};  // finished parts of all phases
    Signal progress;
};

namespace {

bool is_free(const Claim& claim, const Member& member) {
    return claim.phases.load(std::memory_order_relaxed) == member.phase;
}

bool take(Claim& claim, Member& member, int part) {
    long long before = member.phase;
    if (!is_free(claim, member) || !claim.phases.compare_exchange_strong(before, before + 1)) return false;
    member.part = part;
    return true;
}

// Whether the part is still free after its own member has had time to take it. Waiting is worth it: that member has
// the part's weights in its caches, and doing two parts one after the other takes twice as long. A member that did
// not come is not waited for again until it is back.
bool is_abandoned(Claim& claim, const Member& member) {
    if (!claim.expected.load(std::memory_order_relaxed)) return is_free(claim, member);
    for (int i = 0; i < kSpins; ++i) {
        if (!is_free(claim, member)) return false;
        pause_core();
    }
    claim.expected.store(false, std::memory_order_relaxed);
    return true;
}

}  // namespace

int next_part(Member& member) {
    Phases& phases = *member.phases;
    if (member.part >= 0 && ++phases.done % member.parts == 0) phases.progress.notify();
    Claim& own = phases.claims[member.rank];
    if (!own.expected.load(std::memory_order_relaxed)) own.expected.store(true, std::memory_order_relaxed);
    if (take(own, member, member.rank)) return member.part;
    for (int i = 1; i < member.parts; ++i) {
        const int part = (member.rank + i) % member.parts;
        Claim& other = phases.claims[part];
        if (is_abandoned(other, member) && take(other, member, part)) return part;
    }
    const long long all = ++member.phase * member.parts;
    phases.progress.wait(kSpins, [&] { return phases.done >= all; });
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
