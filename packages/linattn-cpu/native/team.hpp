// Threads that work on one call together. Their work does not throw: an exception could not leave a
// thread.
//
// Kernels are compiled once for each instruction set, so this header holds no function that a
// linker could take from one of those builds for another: only plain data and declarations.
#pragma once

namespace linattn {

// A thread that draws pieces of work, of which none waits for another.
struct Worker {
    int rank;         // below the team's size
    long long* next;  // a counter, zero at the start, from which pieces are drawn
};

// Runs work(context, worker) on up to `threads` threads, no more than there are cores, and returns
// when all are done. They are OpenMP's threads, which torch uses too, where the build has OpenMP.
void run_team(int threads, void (*work)(void* context, const Worker& worker), void* context);

struct Phases;

// A thread that takes part in work of many short phases, each cut into `parts` parts. Any member
// takes any part, its own first. A member that the system does not run delays the others only while
// it holds a part: if it holds none, they do its part too.
struct Member {
    int rank, parts;
    Phases* phases;
    long long phase;  // how many phases lie behind
    int part;         // what it holds, or -1
};

// Gives back the part that the member holds and returns the next one of this phase; -1 when all
// parts of the phase are done. The next call begins the next phase.
int next_part(Member& member);

// Runs work(context, member) on the calling thread and on helpers as they come, at most `parts` in
// all, each of which goes through the same phases. Returns when all are done.
void run_phases(int parts, void (*work)(void* context, Member& member), void* context);

}  // namespace linattn
