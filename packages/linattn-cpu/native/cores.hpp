// How many threads are worth starting.
#pragma once

namespace linattn {

// The number of cores that this process may use, at least 1: those of its affinity mask, and at most
// the CPU quota of its cgroup. The quota is read once, the mask at every call.
int available_cores();

// The number of threads for a call that may use up to `threads`: at most the available cores, because more
// threads would only wait for one another.
int team_size(int threads);

}  // namespace linattn
