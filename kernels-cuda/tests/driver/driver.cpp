// A stand-in for the CUDA driver's library: two GPUs, on which some of the emulated kernels run. It refuses what the
// driver would refuse: calls before cuInit, threads without a context, code of another GPU, code that is loaded while a
// graph is captured, shared memory that was not asked for; and fewer bytes of it than were asked for before, which
// would take them from another thread's launch.
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "linattn/device/scan.cuh"
#include "linattn/device/step.cuh"
#include "product.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace {

using linattn::Int;

constexpr int invalid_value = 1, not_initialized = 3, invalid_device = 101, invalid_context = 201, invalid_handle = 400;
constexpr int not_found = 500, unsupported_capture = 900;
constexpr int global_capture = 0, relaxed_capture = 2;
constexpr unsigned shared_without_asking = 48 << 10;

struct Grid {
    unsigned x, y, threads, shared;
};

struct Function {
    std::function<linattn::Status(const Grid&, void** parameters)> run;
};

// A function's code on one GPU.
struct Loaded {
    const Function& function;
    int device;
    unsigned allowed_shared = shared_without_asking;
};

// The values of parameters from their addresses, as many bytes each as the kernel's own types have.
template <class... Parameters, std::size_t... i>
std::tuple<Parameters...> values_of(void** parameters, std::index_sequence<i...>) {
    return {*static_cast<Parameters*>(parameters[i])...};
}

template <class... Parameters>
Function function_of(const char* name, void (*kernel)(Parameters...)) {
    return {[=](const Grid& grid, void** parameters) {
        const auto values = values_of<Parameters...>(parameters, std::index_sequence_for<Parameters...>{});
        const auto launch = [&](const auto&... value) {
            return linattn::launch(name, kernel, grid.x, static_cast<int>(grid.y), static_cast<int>(grid.threads),
                                   static_cast<int>(grid.shared), nullptr, value...);
        };
        return std::apply(launch, values);
    }};
}

using Functions = std::map<std::string, Function>;

template <class Shape>
void add_product(Functions& functions) {
    const char* name = linattn::product_name<Shape>();
    functions[name] = function_of(name, linattn::product<Shape>);
}

Functions all_functions() {
    Functions functions;
    functions["scan"] = function_of("scan", linattn::scan);
    functions["step_heads"] = function_of("step_heads", linattn::step_heads);
    // Of each number of parts the smallest, and one that needs more shared memory than a block has unasked.
    add_product<linattn::ProductShapes<1>::Least>(functions);
    add_product<linattn::ProductShapes<1>::LeastPair>(functions);
    add_product<linattn::ProductShapes<1>::Large>(functions);
    add_product<linattn::ProductShapes<2>::Least>(functions);
    add_product<linattn::ProductShapes<2>::LeastPair>(functions);
    add_product<linattn::ProductShapes<3>::Least>(functions);
    add_product<linattn::ProductShapes<3>::LeastPair>(functions);
    return functions;
}

Functions& functions() {
    static Functions all = all_functions();
    return all;
}

constexpr int devices = 2;

bool initialized = false;
int primary_contexts[devices] = {0, 1};  // each its device
thread_local const int* current = nullptr;
thread_local int capture_mode = global_capture;

int state_of_thread() { return !initialized ? not_initialized : current == nullptr ? invalid_context : 0; }

}  // namespace

EXPORTED int cuInit(unsigned) {
    initialized = true;
    return 0;
}

EXPORTED int cuDriverGetVersion(int* version) {
    *version = 13000;
    return 0;
}

EXPORTED int cuGetErrorName(int, const char** name) {
    *name = "CUDA_ERROR_OF_THE_STAND_IN";
    return 0;
}

EXPORTED int cuGetErrorString(int, const char** text) {
    *text = "refused";
    return 0;
}

EXPORTED int cuDeviceGet(int* device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < devices ? 0 : invalid_device;
}

EXPORTED int cuDeviceGetAttribute(int* value, int attribute, int device) {
    const std::map<int, int> values = {{75, device == 0 ? 9 : 8}, {76, 0}, {16, 132}, {97, 232448}};
    *value = values.at(attribute);
    return initialized ? 0 : not_initialized;
}

EXPORTED int cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = &primary_contexts[device];
    return initialized ? 0 : not_initialized;
}

EXPORTED int cuCtxSetCurrent(void* context) {
    current = static_cast<const int*>(context);
    return 0;
}

EXPORTED int cuCtxGetDevice(int* device) {
    if (const int error = state_of_thread()) return error;
    *device = *current;
    return 0;
}

EXPORTED int cuThreadExchangeStreamCaptureMode(int* mode) {
    std::swap(*mode, capture_mode);
    return 0;
}

// An image is the name of its kernel.
EXPORTED int cuModuleLoadData(void** module, const void* image) {
    if (capture_mode != relaxed_capture) return unsupported_capture;
    *module = new std::string(static_cast<const char*>(image));
    return state_of_thread();
}

EXPORTED int cuModuleGetFunction(void** function, void* module, const char* name) {
    const std::string& kernel = *static_cast<std::string*>(module);
    const auto found = functions().find(kernel);
    if (found == functions().end() || name != "symbol of " + kernel) return not_found;
    *function = new Loaded{found->second, *current};
    return 0;
}

EXPORTED int cuFuncSetAttribute(void* function, int attribute, int value) {
    auto& loaded = *static_cast<Loaded*>(function);
    if (attribute != 8 || value < static_cast<int>(loaded.allowed_shared)) return invalid_value;
    loaded.allowed_shared = static_cast<unsigned>(value);
    return 0;
}

EXPORTED int cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void* function, int threads, std::size_t shared) {
    if (const int error = state_of_thread()) return error;
    if (shared > static_cast<Loaded*>(function)->allowed_shared) return invalid_value;
    return linattn::emulation::resident(threads, static_cast<int>(shared), blocks).error;
}

EXPORTED int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
                            unsigned threads_z, unsigned shared, void*, void** parameters, void** extra) {
    if (const int error = state_of_thread()) return error;
    const auto& loaded = *static_cast<Loaded*>(function);
    if (loaded.device != *current) return invalid_handle;
    if (z != 1 || threads_y != 1 || threads_z != 1 || extra != nullptr || capture_mode != global_capture ||
        shared > loaded.allowed_shared) {
        return invalid_value;
    }
    return loaded.function.run({x, y, threads, shared}, parameters).error;
}
