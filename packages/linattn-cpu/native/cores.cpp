#include "cores.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <fstream>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#endif

namespace linattn {

namespace {

// The CPU quota of one cgroup in cores, rounded up, from the files of version 2 or 1; without a quota these
// contain "max" (version 2) or -1 (version 1).
int quota_of(const std::string& folder) {
    double quota = 0, period = 0;
    if (std::ifstream both(folder + "/cpu.max"); both) {
        both >> quota >> period;
    } else {
        std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
        std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    }
    const double cores = quota > 0 && period > 0 ? std::ceil(quota / period) : INT_MAX;
    return static_cast<int>(std::min<double>(cores, INT_MAX));
}

// The smallest quota of a cgroup and its ancestors.
int quota_along(const std::string& root, std::string path) {
    int cores = quota_of(root);
    for (; path.rfind('/') != std::string::npos; path.erase(path.rfind('/'))) {
        cores = std::min(cores, quota_of(root + path));
    }
    return cores;
}

// /proc/self/cgroup has lines "number:controllers:path", without controllers in version 2.
int cpu_quota() {
    int cores = INT_MAX;
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
        const std::size_t first = line.find(':'), second = line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
        const std::string path = line.substr(second + 1);
        if (controllers == ",,") cores = std::min(cores, quota_along("/sys/fs/cgroup", path));
        if (controllers.find(",cpu,") != std::string::npos) {
            cores = std::min(cores, quota_along("/sys/fs/cgroup/cpu", path));
        }
    }
    return cores;
}

int processors() {
#ifdef _OPENMP
    // The cores of the process, even if OpenMP has bound this thread to one core.
    return omp_get_num_procs();
#else
    return static_cast<int>(std::thread::hardware_concurrency());
#endif
}

}  // namespace

int available_cores() {
    static const int quota = std::max(1, cpu_quota());
    return std::max(1, std::min(processors(), quota));
}

int team_size(int threads) { return threads <= 1 ? 1 : std::min(threads, available_cores()); }

}  // namespace linattn
