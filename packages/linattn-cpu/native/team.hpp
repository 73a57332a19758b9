// Threads that work on one call together, and the barrier at which they wait for one another.
//
// Kernels are compiled once for each instruction set, so this header holds no function that a
// linker could take from one of those builds for another: only plain data and declarations.
#pragma once

namespace linattn {

// A barrier for a fixed number of threads. Zeroed memory is a barrier at which nobody waits.
struct alignas(64) Barrier {
    int arrived;
    alignas(64) int phase;
};

// What a thread knows of the call that it takes part in.
struct Worker {
    int rank;           // 0 .. count - 1
    int count;          // threads that take part
    Barrier* barriers;  // `count` of them, for whoever shares a piece of work
    long long* next;    // a counter, zero at the start, from which pieces of work are drawn
};

// Runs work(context, worker) on up to `threads` threads at once and returns when all are done.
void run_team(int threads, void (*work)(void* context, const Worker& worker), void* context);

// Waits until `count` threads have come to this barrier.
void wait_at(Barrier& barrier, int count);

}  // namespace linattn
