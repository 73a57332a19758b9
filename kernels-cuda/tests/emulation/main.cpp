// Small kernels that show what the emulation does, and what it refuses to do. Prints each test that fails; the exit
// status is 1 if one did. With an argument, runs the tests whose names contain it; with "--fault NAME" a kernel that is
// wrong in a way that only a sanitizer sees.
#include <cstdio>
#include <cstring>

#include "faults.hpp"
#include "testing.hpp"

namespace linattn::testing {

bool passes(const Test& test) {
    try {
        test.run();
        return true;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: %s.\n", test.name, error.what());
        return false;
    }
}

}  // namespace linattn::testing

int main(int count, char** arguments) {
    if (count == 3 && std::strcmp(arguments[1], "--fault") == 0) return linattn::testing::run_fault(arguments[2]);
    int run = 0, failed = 0;
    for (const auto& test : linattn::testing::tests()) {
        if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr) continue;
        ++run;
        failed += !linattn::testing::passes(test);
    }
    std::printf("%d tests of the emulation, %d failed\n", run, failed);
    return failed > 0 || run == 0;
}
