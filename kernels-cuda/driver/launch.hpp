// Launching kernels that are compiled when they are first launched. The caller gives a compiler, which is asked for a
// kernel by its name in C++; launches are those of the compiled module, from the same sources.
#pragma once

#include <functional>
#include <string>
#include <tuple>

#include "linattn/calls.h"

namespace linattn::driver {

struct Launch {
    const char* kernel;
    Int grid_x;
    int grid_y, threads, shared;
    void* stream;
    void** parameters;  // addresses of the arguments
};

// On the current device. Throws what the compiler throws.
Status run(const Launch& launch);

// How many blocks a multiprocessor of the current device runs side by side.
Status resident(const char* kernel, int threads, int shared, int* blocks);

// Machine code of one kernel, and the kernel's name in it.
struct Image {
    std::string code, symbol;
};

// Compiles a kernel, named as in namespace linattn, for an architecture as "sm_90". Called once for each kernel and
// GPU. Callers hold no lock that the compiler takes.
using Compiler = std::function<Image(const std::string& kernel, const std::string& architecture)>;
void set_compiler(Compiler compiler);

// Makes a GPU the current device of this thread, as torch does: in its primary context.
int make_current(int ordinal);

}  // namespace linattn::driver

namespace linattn {

// The kernel gives the types of its parameters alone.
template <class... Parameters, class... Arguments>
Status launch(const char* name, void (*)(Parameters...), Int grid_x, int grid_y, int threads, int shared, void* stream,
              const Arguments&... arguments) {
    std::tuple<Parameters...> values{arguments...};
    const auto run = [&](auto&... value) {
        void* parameters[] = {&value...};
        return driver::run({name, grid_x, grid_y, threads, shared, stream, parameters});
    };
    return std::apply(run, values);
}

template <class... Parameters>
Status resident(const char* name, void (*)(Parameters...), int threads, int shared, int* blocks) {
    return driver::resident(name, threads, shared, blocks);
}

}  // namespace linattn
