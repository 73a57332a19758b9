"""The backend that is always there: plain torch operations, any device, any shape."""

from __future__ import annotations

from torch import Tensor

from linattn_core.reference.definition import absent
from linattn_core.registry import AttentionCall, StepCall
from linattn_core.state import LinearAttentionState
from linattn_core.torch_kernels.attention import Gradients, Output, backward, forward
from linattn_core.torch_kernels.packing import packed_backward, packed_forward
from linattn_core.torch_kernels.step import step_
from linattn_core.torch_kernels.tiles import Problem


class ReferenceBackend:
    """Runs every call; see `linattn_core.registry.Backend` for what the methods promise."""

    name = "reference"
    speed = 0
    double_backward = True
    description = "plain torch operations, any device"

    def refuses(self, call: AttentionCall | StepCall) -> str | None:
        return None

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        key_lengths: Tensor | None,
        cu_seqlens: Tensor | None,
        initial_state: LinearAttentionState | None,
        is_causal: bool,
        keep_state: bool,
        feature_map: str,
        eps: float,
    ) -> Output:
        problem = _problem(query, key, value, key_lengths, feature_map, eps)
        options = {"is_causal": is_causal, "keep_state": keep_state}
        if cu_seqlens is None:
            return forward(problem, initial_state, **options)
        return packed_forward(problem, cu_seqlens, initial_state, **options)

    def attention_backward(
        self,
        grad_out: Tensor,
        grad_state: LinearAttentionState | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        normalizer: Tensor,
        *,
        key_lengths: Tensor | None,
        cu_seqlens: Tensor | None,
        state: LinearAttentionState | None,
        is_causal: bool,
        feature_map: str,
        eps: float,
    ) -> Gradients:
        problem = _problem(query, key, value, key_lengths, feature_map, eps)
        if cu_seqlens is None:
            return backward(
                grad_out, grad_state, problem, out, normalizer, state, is_causal=is_causal
            )
        return packed_backward(
            grad_out, grad_state, problem, cu_seqlens, out, normalizer, state, is_causal=is_causal
        )

    def step_(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: LinearAttentionState,
        *,
        feature_map: str,
        eps: float,
    ) -> Tensor:
        return step_(query, key, value, state.s, state.z, feature_map, eps)


def _problem(
    query: Tensor, key: Tensor, value: Tensor, key_lengths: Tensor | None, phi: str, eps: float
) -> Problem:
    gone = None if key_lengths is None else absent(key_lengths.to(key.device), key.shape[2])
    return Problem(query, key, value, gone, phi, eps)
