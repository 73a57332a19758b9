"""The backend "cupy": the ladder's last rung, for whoever asks for it by name."""

from __future__ import annotations

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.state import LinearAttentionState
from linattn_cuda.prototypes.ladder import (
    ELSEWHERE,
    LADDER,
    choose_rung,
    find_fault,
    find_refusal,
)


class CupyBackend:
    """Runs causal calls without gradients on CUDA tensors; "auto" never takes it.

    A call runs on the last rung that keeps the accuracy of the tensors' dtype.
    """

    name = "cupy"
    speed = -1  # below the reference, which accepts whatever comes to it
    double_backward = False
    description = f"CUDA kernels as a ladder ({', '.join(LADDER)}), only where asked for by name"

    def unusable(self) -> str | None:
        return find_fault()

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Steps, and what the rung of the dtype refuses."""
        if isinstance(call, StepCall):
            return f"its rungs walk whole sequences and have no decoding step; {ELSEWHERE}."
        return find_refusal(call) or choose_rung(call.value_dtype).refuses(call)

    def attention(self, call: AttentionCall) -> Output:
        return choose_rung(call.value_dtype).run(call)

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
    ) -> Gradients:
        raise ValueError('backend "cupy" has no gradients: its rungs are forward only.')

    def step(self, call: StepCall) -> Tensor:
        raise ValueError(f'backend "cupy" takes no steps: {self.refuses(call)}')
