#include "instruction_sets.hpp"

#include <atomic>
#include <stdexcept>

namespace linattn {

// One namespace for each build of the kernels; CMakeLists.txt lists them.
#ifdef LINATTN_X86
namespace avx512bf16 {
extern const Kernels kernels;
}
namespace avx512vnni {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
#endif
namespace baseline {
extern const Kernels kernels;
}

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> usable;
#ifdef LINATTN_X86
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
    if (has_vnni && __builtin_cpu_supports("avx512bf16")) usable.push_back(&avx512bf16::kernels);
    if (has_vnni) usable.push_back(&avx512vnni::kernels);
    if (has_avx512) usable.push_back(&avx512::kernels);
    if (has_avx2) usable.push_back(&avx2::kernels);
#endif
    usable.push_back(&baseline::kernels);
    return usable;
}

namespace {

std::atomic<const Kernels*>& live() {
    static std::atomic<const Kernels*> kernels{usable_kernels().front()};
    return kernels;
}

}  // namespace

const Kernels& live_kernels() { return *live().load(std::memory_order_relaxed); }

void use_instruction_set(const std::string& name) {
    std::string known;
    for (const Kernels* kernels : usable_kernels()) {
        if (name == kernels->instruction_set) {
            live().store(kernels, std::memory_order_relaxed);
            return;
        }
        known += known.empty() ? "" : ", ";
        known += kernels->instruction_set;
    }
    throw std::invalid_argument("instruction set: expected one of " + known + ", got '" + name + "'.");
}

}  // namespace linattn
