"""The interface that a backend implements."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.decoder_spec import DecoderDescription, NativeDecoder
from linattn_core.state import LinearAttentionState


class Backend(Protocol):
    """What runs the operators. Shapes, dtypes and devices have been checked before.

    A backend may compile decoders too; it then satisfies `DecoderBackend`.

    Attributes:
        name: what callers pass as `backend=`.
        speed: "auto" asks backends from the highest speed to the lowest; the reference has 0.
        double_backward: whether second derivatives may be taken through `reference.chunked`.
        description: what it was built for, one line for `linattn_core.info`.
    """

    name: str
    speed: int
    double_backward: bool
    description: str

    def unusable(self) -> str | None:
        """None if the backend can run on this machine, else the reason as a sentence."""

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """None to accept the call, else the reason as a sentence. Reads no values of tensors.

        One answer holds for all steps that differ in numbers, strides and the batch alone.
        """

    def attention(self, call: AttentionCall) -> Output:
        """Computes whole sequences. Writes to no tensor of the call."""

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
    ) -> Gradients:
        """Gradients of what `attention` returned.

        Args:
            call: the call of the forward pass, with `wanted_gradients`.
            output: what the forward pass returned; its state is None if the call is causal.
            grad_out: (B, H, N, M), the upstream gradient, any strides.
            grad_state: the upstream gradient of the state; None if it was not wanted.

        A backend that accepts calls with `return_normalizer` also gets the upstream gradient of the
        normalizer, (B, H, N), as a fifth argument, where there is one.
        """

    def step(self, call: StepCall) -> Tensor:
        """Updates the state of the call in place and returns out (B, H, M)."""


@runtime_checkable
class DecoderBackend(Protocol):
    """A backend that compiles whole models for decoding."""

    def refuses_decoder(self, description: DecoderDescription, weights: str) -> str | None:
        """None to accept the model with weights of this dtype, else the reason as a sentence."""

    def compile_decoder(self, description: DecoderDescription, weights: str) -> NativeDecoder:
        """Packs the weights of a model that `refuses_decoder` accepts."""


@runtime_checkable
class CachingBackend(Protocol):
    """A backend that keeps the memory of freed results for later ones."""

    def empty_cache(self) -> None:
        """Gives the memory that is kept back to the system."""
