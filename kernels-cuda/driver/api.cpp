#include "driver/api.hpp"

#include <dlfcn.h>

#include <stdexcept>

namespace linattn::driver {

namespace {

std::string& library_path() {
    static std::string path = "libcuda.so.1";
    return path;
}

template <class Function>
void take(void* library, const char* name, Function*& function) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function != nullptr) return;
    throw std::runtime_error("expected the function " + std::string(name) + " of the CUDA driver in " + library_path() +
                             ", got none; update NVIDIA's driver.");
}

std::string described_by(const Api& api, int error) {
    const char *name = nullptr, *text = nullptr;
    api.cuGetErrorName(error, &name);
    api.cuGetErrorString(error, &text);
    const auto or_unknown = [](const char* x) { return std::string(x == nullptr ? "unknown" : x); };
    return or_unknown(name) + " (" + std::to_string(error) + "): " + or_unknown(text);
}

Api loaded() {
    void* const library = dlopen(library_path().c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        throw std::runtime_error("expected the CUDA driver, got \"" + std::string(dlerror()) +
                                 "\"; install NVIDIA's driver.");
    }
    Api api{};
#define LINATTN_DRIVER_TAKE(name, ...) take(library, #name, api.name);
    LINATTN_DRIVER_FUNCTIONS(LINATTN_DRIVER_TAKE)
#undef LINATTN_DRIVER_TAKE
    const int error = api.cuInit(0);
    if (error == 0) return api;
    throw std::runtime_error("expected the CUDA driver to start, got " + described_by(api, error) +
                             "; see whether `nvidia-smi` lists a GPU.");
}

}  // namespace

void use_library(const std::string& path) { library_path() = path; }

const Api& api() {
    static const Api once = loaded();
    return once;
}

std::string described(int error) { return described_by(api(), error); }

}  // namespace linattn::driver
