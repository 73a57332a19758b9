#include "kernels/causal_backward.hpp"

#include "kernels/units.hpp"

LINATTN_BEGIN

void causal_backward(const AttentionBackward& call) {
    call.value_dtype == Dtype::float64 ? causal_backward<double>(call) : causal_backward<float>(call);
}

LINATTN_END
