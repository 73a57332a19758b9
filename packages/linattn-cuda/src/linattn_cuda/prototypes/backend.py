"""The backend "cupy": the ladder's last rung, for whoever asks for it by name."""

from __future__ import annotations

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.state import LinearAttentionState
from linattn_cuda import device
from linattn_cuda.prototypes.ladder import (
    ELSEWHERE,
    LADDER,
    Problem,
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
        """Whatever the rungs leave to the backend "cuda", and machines where nothing runs."""
        if isinstance(call, StepCall):
            return f"its rungs walk whole sequences and have no decoding step; {ELSEWHERE}."
        # In this order: a call on CPU tensors must not start CUDA.
        reason = find_refusal(call) or device.find_wrong_device(call.device) or find_fault()
        if reason is not None:
            return reason
        rung, gpu = choose_rung(call.value_dtype), device.gpu_of(call.device)
        if gpu.capability < rung.capability:
            return (
                f"its rung {rung.name} needs compute capability {rung.capability} and {gpu.name} "
                f"has {gpu.capability}; {ELSEWHERE}."
            )
        needed = max(launch.shared for launch in rung.plan(Problem.of(call, 1)))
        if needed > gpu.shared_bytes:
            return (
                f"its rung {rung.name} needs {needed:,} bytes of shared memory a block and "
                f"{gpu.name} offers {gpu.shared_bytes:,}; {ELSEWHERE}."
            )
        return None

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
