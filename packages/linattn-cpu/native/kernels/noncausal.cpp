#include "kernels/noncausal.hpp"

#include "kernels/units.hpp"

LINATTN_BEGIN

void noncausal_forward(const AttentionForward& call) {
    call.value_dtype == Dtype::float64 ? noncausal_forward<double>(call) : noncausal_forward<float>(call);
}

void noncausal_backward(const AttentionBackward& call) {
    call.value_dtype == Dtype::float64 ? noncausal_backward<double>(call) : noncausal_backward<float>(call);
}

LINATTN_END
