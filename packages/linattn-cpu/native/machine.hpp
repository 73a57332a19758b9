// The instruction sets of this machine, for the module and for the build, which asks which of them to compile.
#pragma once

#include <string>
#include <vector>

#ifdef LINATTN_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace linattn {

#ifdef LINATTN_AMX

// Whether the processor has tiles of bfloat16 and of 8-bit integers, and Linux lets this process use them. It does so
// on request: threads that use tiles save 8 KiB more, also for signals, so it then refuses smaller signal stacks.
inline bool grants_tiles() {
    unsigned a, b, c, d;
    const unsigned wanted = 1u << 22 | 1u << 24 | 1u << 25;  // AMX-BF16, AMX-TILE, AMX-INT8
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & wanted) != wanted) return false;
    const long request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

#endif  // LINATTN_AMX

// Their names, fastest first; the last, "baseline", is what every machine of this architecture has.
inline std::vector<std::string> sets_of_machine() {
    std::vector<std::string> sets{"baseline"};
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                            __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool has_vnni = has_avx512 && __builtin_cpu_supports("avx512vnni");
    const bool has_bf16 = has_vnni && __builtin_cpu_supports("avx512bf16");
    if (has_avx2) sets.insert(sets.begin(), "avx2");
    if (has_avx512) sets.insert(sets.begin(), "avx512");
    if (has_vnni) sets.insert(sets.begin(), "avx512vnni");
    if (has_bf16) sets.insert(sets.begin(), "avx512bf16");
#ifdef LINATTN_AMX
    if (has_bf16 && grants_tiles()) sets.insert(sets.begin(), "amx");
#endif
#endif
    return sets;
}

}  // namespace linattn
