// One build of the kernels, for the instruction set that LINATTN_ISA names.
#include "calls.hpp"
#include "kernels/causal_backward.hpp"
#include "kernels/causal_forward.hpp"
#include "kernels/decoder/decode.hpp"
#include "kernels/noncausal.hpp"
#include "kernels/peak.hpp"
#include "kernels/step.hpp"

#define LINATTN_NAME_(x) #x
#define LINATTN_NAME(x) LINATTN_NAME_(x)

LINATTN_BEGIN

static void attention_forward(const AttentionForward& call) {
    const bool wide = call.value_dtype == Dtype::float64;
    if (call.causal) return wide ? causal_forward<double>(call) : causal_forward<float>(call);
    return wide ? noncausal_forward<double>(call) : noncausal_forward<float>(call);
}

static void attention_backward(const AttentionBackward& call) {
    const bool wide = call.value_dtype == Dtype::float64;
    if (call.causal) return wide ? causal_backward<double>(call) : causal_backward<float>(call);
    return wide ? noncausal_backward<double>(call) : noncausal_backward<float>(call);
}

static void step(const Step& call) {
    return call.value_dtype == Dtype::float64 ? step_all<double>(call) : step_all<float>(call);
}

extern const Kernels kernels;
const Kernels kernels = {
    LINATTN_NAME(LINATTN_ISA), attention_forward,      attention_backward,    step,
    decoding::kPanel,          decoding::packed_bytes, decoding::packed_sums, decoding::pack_matrix,
    decoding::workspace_bytes, decoding::decode,       fused_multiply_adds,
};

LINATTN_END
