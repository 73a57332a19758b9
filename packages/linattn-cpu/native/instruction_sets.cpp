#include "instruction_sets.hpp"

#include <atomic>
#include <stdexcept>

#ifdef LINATTN_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace linattn {

// One namespace for each build of the kernels; CMakeLists.txt lists them.
#ifdef LINATTN_AMX
namespace amx {
extern const Kernels kernels;
}
#endif
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

#ifdef LINATTN_AMX

namespace {

// Whether the processor has tiles of bfloat16 and of 8-bit integers, and Linux lets this process use them. It does so
// on request: threads that use tiles save 8 KiB more, also for signals, so it then refuses smaller signal stacks.
bool grants_tiles() {
    unsigned a, b, c, d;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return false;
    const long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

}  // namespace

#endif  // LINATTN_AMX

std::vector<const Kernels*> usable_kernels() {
    std::vector<const Kernels*> usable;
#ifdef LINATTN_X86
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
    const bool has_bf16 = has_vnni && __builtin_cpu_supports("avx512bf16");
#ifdef LINATTN_AMX
    static const bool has_tiles = has_bf16 && grants_tiles();
    if (has_tiles) usable.push_back(&amx::kernels);
#endif
    if (has_bf16) usable.push_back(&avx512bf16::kernels);
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
