"""The backend "cupy": the ladder's last rung, or another by name, for whoever asks for it."""

from __future__ import annotations

import functools
from importlib.util import find_spec

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall, Gradients, Output, StepCall
from linattn_core.state import LinearAttentionState
from linattn_cuda.prototypes import ladder
from linattn_cuda.prototypes.ladder import DTYPES, LADDER, Rung

WIDEST = 128
_ELSEWHERE = 'pass backend="auto"'
_FORWARD_ONLY = f"its rungs are forward only; {_ELSEWHERE} where gradients are needed."
_NO_STEP = f"its rungs walk whole sequences and have no decoding step; {_ELSEWHERE}."


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
        return unusable()

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        """Whatever the rungs leave to the backend "cuda", and machines where nothing runs."""
        if isinstance(call, StepCall):
            return _NO_STEP
        # In this order: a call on CPU tensors must not start CUDA.
        reason = without_cupy() or unsupported(call) or _elsewhere(call.device) or unusable()
        if reason is not None:
            return reason
        rung = self._rung(call.value_dtype)
        return _inaccurate(rung, call) or _too_small(rung, call)

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
        raise ValueError(f'backend "cupy" has no gradients: {_FORWARD_ONLY}')

    def step(self, call: StepCall) -> Tensor:
        raise ValueError(f'backend "cupy" takes no steps: {_NO_STEP}')


@functools.cache
def without_cupy() -> str | None:
    """None if CuPy is installed, or what to do, as a sentence."""
    if find_spec("cupy") is None:
        return "CuPy is not installed; install linattn-cuda with its extra [cupy]."
    return None


def _elsewhere(device: torch.device) -> str | None:
    if device.type == "cuda":
        return None
    return f"it runs on CUDA tensors and these are on {device}; move them to a GPU."


@functools.cache
def unusable() -> str | None:
    """Why nothing can run in this process, as a sentence; None if CuPy and a GPU are at hand."""
    reason = without_cupy()
    if reason is not None:
        return reason
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} finds no GPU: its rungs can be compiled and not run."
    return None


def unsupported(call: AttentionCall) -> str | None:
    """What no rung does, as a sentence, whatever the machine."""
    if call.requires_grad:
        return _FORWARD_ONLY
    if not call.is_causal:
        return f"its rungs are causal and is_causal is False; {_ELSEWHERE}."
    taken_by_none = ("attn_mask", "key_lengths", "cu_seqlens", "initial_state", "return_state")
    for name in (*taken_by_none, "log_decay", "return_normalizer"):
        value = getattr(call, name)
        if value is not None and value is not False:
            return f"its rungs take no {name}; {_ELSEWHERE}."
    if not call.normalize or call.heads != call.kv_heads:
        return f"its rungs normalize and have no groups of heads; {_ELSEWHERE}."
    return _unsupported_numbers(call)


def _unsupported_numbers(call: AttentionCall) -> str | None:
    dtypes = {call.query_dtype, call.value_dtype}
    if len(dtypes) > 1 or not dtypes <= DTYPES.keys():
        names = " and ".join(sorted(str(x).removeprefix("torch.") for x in dtypes))
        return f"its rungs take float32, bfloat16 or float16 alone and got {names}; {_ELSEWHERE}."
    if max(call.feature_dim, call.value_dim) > WIDEST:
        return (
            f"its rungs take features and values of up to {WIDEST} and got {call.feature_dim} and "
            f"{call.value_dim}; {_ELSEWHERE}."
        )
    return None


def _inaccurate(rung: Rung, call: AttentionCall) -> str | None:
    """What would be rounded to fewer bits than the caller's, as a sentence."""
    if call.value_dtype in rung.keeps:
        return None
    dtype = str(call.value_dtype).removeprefix("torch.")
    return (
        f"its rung {rung.name} computes in bfloat16 and the tensors are {dtype}; convert them, or "
        f"set the backend's `rung` to None."
    )


def _too_small(rung: Rung, call: AttentionCall) -> str | None:
    """Why this GPU cannot run the rung, as a sentence."""
    name = torch.cuda.get_device_name(call.device)
    capability = torch.cuda.get_device_capability(call.device)
    if capability < rung.capability:
        return "its rung {} needs compute capability {}.{} and {} has {}.{}; {}.".format(
            rung.name, *rung.capability, name, *capability, _ELSEWHERE
        )
    needed = rung.shared_bytes(call.feature_dim, call.value_dim, call.value_dtype)
    offered = ladder.shared_bytes(call.device)
    if needed > offered:
        return (
            f"its rung {rung.name} needs {needed:,} bytes of shared memory a block for features of "
            f"{call.feature_dim} and values of {call.value_dim} and {name} offers {offered:,}; "
            f"{_ELSEWHERE}."
        )
    return None
