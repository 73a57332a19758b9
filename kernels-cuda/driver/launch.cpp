#include "driver/launch.hpp"

#include <map>
#include <mutex>
#include <utility>

#include "driver/api.hpp"

namespace linattn::driver {

namespace {

// Numbers of cuda.h.
constexpr int invalid_value = 1, relaxed_capture = 2, shared_bytes_of_function = 8;
constexpr int major_capability = 75, minor_capability = 76;
constexpr int shared_without_asking = 48 * 1024;

// A kernel's code on a device.
struct Function {
    void* handle;
    int shared = shared_without_asking;  // the most bytes that its blocks may have
};

using Key = std::pair<int, std::string>;  // device and kernel

std::mutex functions_mutex, loading_mutex, contexts_mutex;
std::map<Key, Function> functions;
std::map<int, void*> contexts;  // by ordinal

Compiler& compiler() {
    static auto* const given = new Compiler;  // not destroyed, as it may hold what outlives this module
    return *given;
}

// While it lives, this thread may load code although a graph is being captured: loading is no part of the graph.
class Relaxed {
public:
    Relaxed() { api().cuThreadExchangeStreamCaptureMode(&mode_); }
    ~Relaxed() { api().cuThreadExchangeStreamCaptureMode(&mode_); }
    Relaxed(const Relaxed&) = delete;

private:
    int mode_ = relaxed_capture;
};

int architecture_of(int device, std::string* name) {
    int major = 0, minor = 0;
    if (const int error = api().cuDeviceGetAttribute(&major, major_capability, device)) return error;
    if (const int error = api().cuDeviceGetAttribute(&minor, minor_capability, device)) return error;
    *name = "sm_" + std::to_string(major) + std::to_string(minor);
    return 0;
}

int load(int device, const char* kernel, void** function) {
    std::string architecture;
    if (const int error = architecture_of(device, &architecture)) return error;
    const Image image = compiler()(kernel, architecture);
    const Relaxed relaxed;
    void* module = nullptr;
    if (const int error = api().cuModuleLoadData(&module, image.code.data())) return error;
    return api().cuModuleGetFunction(function, module, image.symbol.c_str());
}

// Null where it has not been loaded.
Function* loaded(const Key& key) {
    const std::lock_guard<std::mutex> lock(functions_mutex);
    const auto found = functions.find(key);
    return found == functions.end() ? nullptr : &found->second;
}

// The kernel's code on the current device; it stays loaded.
int find(const char* kernel, Function** function) {
    int device = 0;
    if (const int error = api().cuCtxGetDevice(&device)) return error;
    const Key key{device, kernel};
    *function = loaded(key);
    if (*function != nullptr) return 0;
    // Held while a kernel is compiled, which takes seconds; loaded ones are launched meanwhile.
    const std::lock_guard<std::mutex> one_at_a_time(loading_mutex);
    *function = loaded(key);
    if (*function != nullptr) return 0;
    void* handle = nullptr;
    if (const int error = load(device, kernel, &handle)) return error;
    const std::lock_guard<std::mutex> lock(functions_mutex);
    *function = &functions.emplace(key, Function{handle}).first->second;
    return 0;
}

// The same, allowed to have blocks with so many bytes of shared memory; never fewer than before, as another thread may
// be about to launch it with those.
int find(const char* kernel, int shared, void** handle) {
    Function* function = nullptr;
    if (const int error = find(kernel, &function)) return error;
    *handle = function->handle;
    const std::lock_guard<std::mutex> lock(functions_mutex);
    if (shared <= function->shared) return 0;
    if (const int error = api().cuFuncSetAttribute(*handle, shared_bytes_of_function, shared)) return error;
    function->shared = shared;
    return 0;
}

int launched(const Launch& launch) {
    if (launch.grid_x > 0x7fffffffLL || launch.grid_y > 0xffff) return invalid_value;
    void* function = nullptr;
    if (const int error = find(launch.kernel, launch.shared, &function)) return error;
    return api().cuLaunchKernel(function, static_cast<unsigned>(launch.grid_x), launch.grid_y, 1, launch.threads, 1, 1,
                                launch.shared, launch.stream, launch.parameters, nullptr);
}

Status status_of(int error, const char* kernel) { return {error, error == 0 ? nullptr : kernel}; }

}  // namespace

void set_compiler(Compiler given) { compiler() = std::move(given); }

Status run(const Launch& launch) { return status_of(launched(launch), launch.kernel); }

Status resident(const char* kernel, int threads, int shared, int* blocks) {
    void* function = nullptr;
    if (const int error = find(kernel, shared, &function)) return status_of(error, kernel);
    const auto bytes = static_cast<std::size_t>(shared);
    return status_of(api().cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, function, threads, bytes), kernel);
}

int make_current(int ordinal) {
    const std::lock_guard<std::mutex> lock(contexts_mutex);
    void*& context = contexts[ordinal];
    if (context == nullptr) {
        int device = 0;
        if (const int error = api().cuDeviceGet(&device, ordinal)) return error;
        if (const int error = api().cuDevicePrimaryCtxRetain(&context, device)) return error;
    }
    return api().cuCtxSetCurrent(context);
}

}  // namespace linattn::driver
