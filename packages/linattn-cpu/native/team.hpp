// Threads that work on one call together. Their work must not throw: an exception cannot leave a thread.
//
// Kernels are compiled once for each instruction set, so this header has only plain data and declarations: a linker
// could use an inline function of one build for another.
#pragma once

namespace linattn {

// A thread that takes independent pieces of work.
struct Worker {
    int rank;         // below the number of threads
    long long* next;  // a shared counter, the index of the next piece
};

// Runs work(context, worker) on up to `threads` threads, no more than there are cores, and returns
// when all are done. They are OpenMP's threads, which torch uses too, where the build has OpenMP.
void run_team(int threads, void (*work)(void* context, const Worker& worker), void* context);

struct Phases;

// A thread that takes part in work of many short phases, each cut into `parts` parts. A member takes its own part
// first, then those of members that did not come in time. A member that the system does not run delays the others only
// while it holds a part; if it holds none, they do its part too.
struct Member {
    int rank, parts;
    Phases* phases;
    long long phase;  // the number of finished phases
    int part;         // the part that it holds, or -1
};

// Marks the part that the member holds as done, and returns the next part of this phase; -1 when all parts of the
// phase are done. The call after that starts the next phase.
int next_part(Member& member);

// Runs work(context, member) on the calling thread and on available helpers, at most `parts` threads in all; each
// goes through the same phases. Returns when all are done.
void run_phases(int parts, void (*work)(void* context, Member& member), void* context);

}  // namespace linattn
