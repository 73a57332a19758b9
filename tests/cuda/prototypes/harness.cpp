// Every rung compiled for the CPU, behind one function that is told, as a GPU's driver is, which kernel to run on how
// many blocks and threads with how much shared memory. Python's plan of the launches is tested with the kernels.
#include <cstdio>
#include <cstring>
#include <exception>

#include "chunked.cu"
#include "linattn/host/launch.h"
#include "recurrent.cu"
#include "split.cu"

namespace linattn::prototypes {
namespace {

constexpr int not_compiled = -1, given_up = -2;
char message[1024];

struct Kernel {
    const char* name;
    void (*run)(Call);
};

// Everything that Python may ask of a dtype and a pair of widths.
template <Dtype dtype, int D, int M>
struct Kernels {
    static constexpr Kernel all[] = {
        {"recurrent", recurrent<dtype, D, M>},
        {"chunked", chunked<dtype, D, M>},
        {"tensor_cores", tensor_cores<dtype, D, M>},
        {"overlapped", overlapped<dtype, D, M>},
        {"segment_sums", segment_sums<dtype, D, M>},
        {"segment_starts", segment_starts<dtype, D, M>},
        {"segment_outputs", segment_outputs<dtype, D, M>},
    };
};

struct Compiled {
    Dtype dtype;
    int dim, value_dim;
    const Kernel (&kernels)[7];
};

// The dtypes of 16 bits differ from float32 in all that depends on their size, and from one another in conversions.
constexpr Compiled compiled[] = {
    {Dtype::float32, 16, 16, Kernels<Dtype::float32, 16, 16>::all},
    {Dtype::bfloat16, 16, 16, Kernels<Dtype::bfloat16, 16, 16>::all},
    {Dtype::float16, 16, 16, Kernels<Dtype::float16, 16, 16>::all},
    {Dtype::float32, 48, 32, Kernels<Dtype::float32, 48, 32>::all},
    {Dtype::bfloat16, 80, 64, Kernels<Dtype::bfloat16, 80, 64>::all},
};

}  // namespace
}  // namespace linattn::prototypes

// 0, or a CUDA error, or one of the negative numbers above.
extern "C" int run_prototype(const char* name, int dtype, int dim, int value_dim, long long grid_x, int grid_y,
                             int threads, int shared, const linattn::prototypes::Call* call) {
    using namespace linattn::prototypes;
    for (const Compiled& widths : compiled) {
        if (static_cast<int>(widths.dtype) != dtype || widths.dim != dim || widths.value_dim != value_dim) continue;
        for (const Kernel& kernel : widths.kernels) {
            if (std::strcmp(kernel.name, name) != 0) continue;
            try {
                return LINATTN_LAUNCH(name, kernel.run, grid_x, grid_y, threads, shared, {}, *call).error;
            } catch (const std::exception& error) {
                std::snprintf(message, sizeof message, "%s", error.what());
                return given_up;
            }
        }
    }
    return not_compiled;
}

// Why the last one gave up.
extern "C" const char* prototype_message() { return linattn::prototypes::message; }

extern "C" void set_prototype_order(int seed) { linattn::emulation::set_order(seed); }
