"""The backend "reference", which is always installed: plain torch operations, on any device."""

from __future__ import annotations

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.reference_backend.attention import backward, forward
from linattn_core.reference_backend.packing import packed_backward, packed_forward
from linattn_core.reference_backend.step import step
from linattn_core.reference_backend.tiles import Problem, Upstream
from linattn_core.state import LinearAttentionState


class ReferenceBackend:
    """Runs every call; see `linattn_core.protocols.Backend` for the methods."""

    name = "reference"
    speed = 0
    double_backward = True
    description = "plain torch operations, any device"

    def unusable(self) -> str | None:
        return None

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        return None

    def attention(self, call: AttentionCall) -> Output:
        compute = forward if call.cu_seqlens is None else packed_forward
        return compute(Problem.of(call))

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        grad_normalizer: Tensor | None = None,
    ) -> Gradients:
        differentiate = backward if call.cu_seqlens is None else packed_backward
        upstream = Upstream(grad_out, grad_normalizer, grad_state, call.normalize)
        return differentiate(Problem.of(call), output, upstream)

    def step(self, call: StepCall) -> Tensor:
        return step(call)
