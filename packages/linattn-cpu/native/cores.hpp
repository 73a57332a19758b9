// How many threads are worth starting.
#pragma once

namespace linattn {

// Cores that this process may use, at least 1: those of its affinity mask, and no more than its
// cgroup's CPU quota pays for. The quota is read once, the mask at every call.
int available_cores();

// Threads for a call that is allowed `threads`: more than there are cores would only wait for one
// another.
int team_size(int threads);

}  // namespace linattn
