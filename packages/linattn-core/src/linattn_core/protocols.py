"""What a backend has to offer."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.decoding import DecoderDescription, NativeDecoder
from linattn_core.state import LinearAttentionState


class Backend(Protocol):
    """What runs the operators. Shapes, dtypes and devices have been checked before.

    A backend may compile decoders too; it then satisfies `DecoderBackend`.

    Attributes:
        name: what callers pass as `backend=`.
        speed: "auto" asks backends from the highest to the lowest; the reference is 0.
        double_backward: `attention_backward` may be differentiated through the reference formula.
        description: what it was built for, one line for `linattn_core.info`.
    """

    name: str
    speed: int
    double_backward: bool
    description: str

    def unusable(self) -> str | None:
        """None if it runs on this machine, or the reason as a sentence."""

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """None to accept the call, or the reason as a sentence. Reads no tensor's numbers."""

    def attention(self, call: AttentionCall) -> Output:
        """The whole sequence. Writes to no tensor of the call."""

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
    ) -> Gradients:
        """Gradients of what `attention` returned.

        Args:
            call: that of the forward pass.
            output: what the forward pass returned; without the state where it was causal.
            grad_out: (B, H, N, M), the upstream gradient, any strides.
            grad_state: that of the state; None if it was not wanted.

        A backend that takes calls with `return_normalizer` gets the normalizer's gradient too,
        (B, H, N), as a fifth argument where there is one.
        """

    def step(self, call: StepCall) -> Tensor:
        """Updates the state of the call in place and returns out (B, H, M)."""


@runtime_checkable
class DecoderBackend(Protocol):
    """A backend that compiles whole models for decoding."""

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        """None to accept the model with its weights in that format, or the reason as a sentence."""

    def compile_decoder(self, description: DecoderDescription, weights: str) -> NativeDecoder:
        """Packs the weights of a model that was not refused."""
