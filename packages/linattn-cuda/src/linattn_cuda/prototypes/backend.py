"""The backend "cupy": the ladder's last rung, or another by name, for whoever asks for it."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.state import LinearAttentionState
from linattn_cuda import device
from linattn_cuda.prototypes.ladder import (
    LADDER,
    Rung,
    find_fault,
    find_missing_cupy,
    refuses_everywhere,
)

_NO_STEP = 'its rungs walk whole sequences and have no decoding step; pass backend="auto".'


class CupyBackend:
    """Runs causal calls without gradients on CUDA tensors; "auto" never takes it.

    Attributes:
        rung: the name of the rung that runs, of `linattn_cuda.prototypes.LADDER`; None takes the
            last that keeps the accuracy of the tensors' dtype.
    """

    name = "cupy"
    speed = -1  # below the reference, which accepts whatever comes to it
    double_backward = False
    rung: str | None = None

    @property
    def description(self) -> str:
        """The rungs."""
        return f"CUDA kernels as a ladder ({', '.join(LADDER)}), only where asked for by name"

    def unusable(self) -> str | None:
        return find_fault()

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Whatever the rungs leave to the backend "cuda", and machines where nothing runs."""
        if isinstance(call, StepCall):
            return _NO_STEP
        # In this order: a call on CPU tensors must not start CUDA.
        reason = (
            find_missing_cupy() or refuses_everywhere(call) or device.find_wrong_device(call.device)
        )
        return reason or find_fault() or self._refuses_rung(call)

    def _refuses_rung(self, call: AttentionCall) -> str | None:
        """The accuracy of the rung, and what it needs of the GPU."""
        rung, dtype, gpu = (
            self._rung(call.value_dtype),
            call.value_dtype,
            device.gpu_of(call.device),
        )
        if dtype not in rung.keeps:
            return (
                f"its rung {rung.name} computes in bfloat16 and the tensors are "
                f"{str(dtype).removeprefix('torch.')}; convert them, or set the backend's `rung` "
                "to None."
            )
        if gpu.capability < rung.capability:
            return (
                'its rung {} needs compute capability {}.{} and {} has {}.{}; pass backend="auto".'
            ).format(rung.name, *rung.capability, gpu.name, *gpu.capability)
        needed = rung.shared_bytes(call.feature_dim, call.value_dim, dtype)
        if needed > gpu.shared_bytes:
            return (
                f"its rung {rung.name} needs {needed:,} bytes of shared memory a block for "
                f"features of {call.feature_dim} and values of {call.value_dim} and {gpu.name} "
                f'offers {gpu.shared_bytes:,}; pass backend="auto".'
            )
        return None

    def _rung(self, dtype: torch.dtype) -> Rung:
        if self.rung is not None:
            return LADDER[self.rung]
        return next(rung for rung in reversed(LADDER.values()) if dtype in rung.keeps)

    def attention(self, call: AttentionCall) -> Output:
        return self._rung(call.value_dtype).run(call)

    def attention_backward(
        self,
        call: AttentionCall,
        output: Output,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
    ) -> Gradients:
        raise ValueError('backend "cupy" has no gradients: its rungs are forward only.')

    def step(self, call: StepCall) -> Tensor:
        raise ValueError(f'backend "cupy" takes no steps: {_NO_STEP}')
