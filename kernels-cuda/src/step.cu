#include "linattn/device/step.cuh"
#include "linattn/host/launch.h"

namespace linattn {

namespace {

// Whether four neighbors of a row of s may be read at once, everywhere.
bool reads_vectors(const Step& call) {
    const Tensor4& s = call.s;
    return s.dim == 1 && call.value_dim % 4 == 0 && reinterpret_cast<unsigned long long>(s.data) % 16 == 0 &&
           s.batch % 4 == 0 && s.head % 4 == 0 && s.position % 4 == 0;
}

// Up to so many heads do not fill a GPU by a warp each.
constexpr Int few_heads = 512;

}  // namespace

Int step_shared_bytes(Int dim) { return step_warps * (2 * dim + 1) * Int(sizeof(float)); }

Status step(const Step& call) {
    const Int heads = call.batch * call.kv_heads;
    if (heads == 0) return {0, nullptr};
    const int shared = static_cast<int>(step_shared_bytes(call.dim));
    const int sharing = heads <= few_heads && call.value_dim > slice_columns ? step_warps : 1;
    const Int blocks = sharing == 1 ? (heads + step_warps - 1) / step_warps : heads;
    const Start start = {call.stream, nullptr};
    return LINATTN_LAUNCH("step_heads", step_heads, blocks, 1, step_threads, shared, start, call, reads_vectors(call),
                          sharing);
}

}  // namespace linattn
