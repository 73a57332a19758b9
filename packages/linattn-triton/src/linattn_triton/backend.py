"""What linattn_core sees: calls as launches of the kernels."""

from __future__ import annotations

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.native import (
    STEP_TENSORS,
    Upstream,
    check_memory,
    find_refusal,
    make_readable,
    mark_written,
    new_output,
)
from linattn_core.state import LinearAttentionState
from linattn_triton import device
from linattn_triton.configurations import WIDEST

LONGEST = 2**31 - 2**10


class TritonBackend:
    """Runs calls on GPUs by Triton; its promises are those of `protocols.Backend`.

    All memory is torch's, and nothing waits for the GPU.
    """

    name = "triton"
    speed = 5
    double_backward = True

    @property
    def description(self) -> str:
        """What compiles the kernels when they are first called."""
        if device.missing() is not None:
            return "no Triton"
        by = "interpreted" if device.interprets() else "compiled when they are first called"
        return f"Triton kernels, {by} by triton {device.installed_version()}"

    def unusable(self) -> str | None:
        return device.unusable()

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Memory off a GPU, no triton, an old GPU, float64, heads too wide, 2^31 positions."""
        reason = device.refuses(call.device) or find_refusal(call, LONGEST)
        if reason is not None or max(call.feature_dim, call.value_dim) <= WIDEST:
            return reason
        return (
            f"its kernels take features and values of up to {WIDEST} and these have "
            f'{call.feature_dim} and {call.value_dim}; pass backend="reference".'
        )

    def attention(self, call: AttentionCall) -> Output:
        from linattn_triton import launches

        call = make_readable(call)
        output = new_output(call)
        with device.current(call.device):
            if call.is_causal:
                launches.causal_forward(call, output)
            else:
                launches.noncausal_forward(call, output)
        return output

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        grad_normalizer: Tensor | None = None,
    ) -> Gradients:
        from linattn_triton import launches

        upstream = Upstream.of(call, output, grad_out, grad_state, grad_normalizer)
        call, output, grad_out, grad_state, grad_normalizer = upstream
        with device.current(call.device):
            h = launches.normalizer_gradient(call, output, grad_out, grad_normalizer)
            differentiate = (
                launches.causal_backward if call.is_causal else launches.noncausal_backward
            )
            return differentiate(call, output, grad_out, h, grad_state)

    def step(self, call: StepCall) -> Tensor:
        from linattn_triton import launches

        check_memory(STEP_TENSORS, (*call[:3], *call.state))
        out = call.value.new_empty(call.batch, call.heads, call.value_dim)
        with device.current(call.device):
            launches.step(call, out)
        mark_written(*call.state)
        return out
