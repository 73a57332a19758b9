#include "cores.hpp"

#include <algorithm>
#include <climits>
#include <fstream>
#include <string>

#ifdef _OPENMP
#include <omp.h>
#else
#include <thread>
#endif

namespace linattn {

namespace {

// Cores that a quota pays for, rounded up; no quota is "max" (version 2) or negative (version 1).
int cores_of(const std::string& quota, double period) {
    if (quota.empty() || quota == "max" || quota[0] == '-' || !(period > 0)) return INT_MAX;
    const double cores = std::stod(quota) / period;
    return cores < INT_MAX - 1 ? static_cast<int>(cores + 0.999) : INT_MAX;
}

// The quota of one cgroup, in the files of either version.
int quota_of(const std::string& folder) {
    std::string quota;
    double period = 0;
    if (std::ifstream(folder + "/cpu.max") >> quota >> period) return cores_of(quota, period);
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
    return cores_of(quota, period);
}

// The smallest quota of a cgroup and those that it lies in.
int quota_along(const std::string& root, std::string path) {
    int cores = quota_of(root);
    for (; path.size() > 1; path.erase(path.rfind('/'))) {
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
    // Of the process, also where OpenMP has bound this thread to one core.
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
