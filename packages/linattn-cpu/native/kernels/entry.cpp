// One build of the kernels, for the instruction set that LINATTN_ISA names.
#include "calls.hpp"
#include "kernels/decoder/packing.hpp"
#include "kernels/peak.hpp"
#include "kernels/step.hpp"
#include "kernels/units.hpp"

#define LINATTN_NAME_(x) #x
#define LINATTN_NAME(x) LINATTN_NAME_(x)

LINATTN_BEGIN

static void attention_forward(const AttentionForward& call) {
    call.causal ? causal_forward(call) : noncausal_forward(call);
}

static void attention_backward(const AttentionBackward& call) {
    call.causal ? causal_backward(call) : noncausal_backward(call);
}

static void step(const Step& call) {
    return call.value_dtype == Dtype::float64 ? step_all<double>(call) : step_all<float>(call);
}

extern const Kernels kernels;
const Kernels kernels = {
    LINATTN_NAME(LINATTN_ISA), attention_forward,      attention_backward,    step,
    decoding::kPanel,          decoding::packed_bytes, decoding::packed_sums, decoding::pack_matrix,
    decoding::workspace_bytes, decoding::decode,       decoding::draw,        fused_multiply_adds,
};

LINATTN_END
