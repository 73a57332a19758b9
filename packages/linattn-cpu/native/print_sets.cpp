// Prints the instruction sets of this machine, fastest first: CMakeLists.txt compiles the first that it can.
#include <cstdio>

#include "machine.hpp"

int main() {
    for (const std::string& name : linattn::sets_of_machine()) std::printf("%s;", name.c_str());
}
