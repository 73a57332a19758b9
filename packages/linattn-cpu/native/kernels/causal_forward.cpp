#include "kernels/causal_forward.hpp"

#include "kernels/units.hpp"

LINATTN_BEGIN

void causal_forward(const AttentionForward& call) {
    call.value_dtype == Dtype::float64 ? causal_forward<double>(call) : causal_forward<float>(call);
}

LINATTN_END
