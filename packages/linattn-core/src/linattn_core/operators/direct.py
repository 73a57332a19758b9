"""linattn::attention with the same gradients but without torch's dispatcher.

The dispatcher goes from C++ to Python and back for autograd and again for the kernel, and converts
every argument each time. For sixteen positions that takes longer than the kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from linattn_core import registry
from linattn_core.autocast import in_full_precision
from linattn_core.calls import AttentionCall, Output
from linattn_core.operators.attention_backward import attention_backward
from linattn_core.operators.library import pair
from linattn_core.state import LinearAttentionState
from linattn_core.values import check_attention_values

# The argument that each tensor of `differentiable` belongs to; a state has two tensors.
_TENSORS = (
    "query", "key", "value", "key_lengths", "cu_seqlens", "initial_state", "initial_state",
)  # fmt: skip


def run(call: AttentionCall, backend: str) -> Output:
    """Runs the kernel of a call, after checks of the numbers in its tensors."""
    if not (call.key_lengths is call.cu_seqlens is call.log_decay is None):
        check_attention_values(call)
    chosen = registry.select(backend, call)
    return in_full_precision(call.query.device.type, chosen.attention, call)


def takes(call: AttentionCall) -> bool:
    """Whether `differentiable` can take the call: it has no mask, no decay and no normalizer."""
    return call.attn_mask is None and call.log_decay is None and not call.return_normalizer


def differentiable(
    call: AttentionCall, backend: str
) -> tuple[Tensor, LinearAttentionState | None, None]:
    """The output and the state, both differentiable; the state is None unless it is wanted."""
    state = call.initial_state or (None, None)
    tensors = (call.query, call.key, call.value, call.key_lengths, call.cu_seqlens, *state)
    apply: Any = _Attention.apply
    if not call.return_state:
        return apply(call, backend, *tensors), None, None
    out, s, z = apply(call, backend, *tensors)
    return out, LinearAttentionState(s, z), None


class _Attention(torch.autograd.Function):
    # Without `setup_context`, which makes torch inspect the signature at every call.
    @staticmethod
    def forward(ctx: Any, call: AttentionCall, backend: str, *tensors: Tensor | None) -> Any:
        out, normalizer, state = run(call, backend)
        # Causal gradients compute S again from the initial state; others read the sums.
        sums = (None, None) if call.is_causal or state is None else state
        # In the operator's order, because checkpointing may repeat this pass by the operator.
        ctx.save_for_backward(out, normalizer, *sums, *tensors)
        # Without the tensors: autograd does not know those of an attribute and could not free them.
        ctx.settings, ctx.backend = _with(call, (None,) * len(tensors)), backend
        return (out, *state) if call.return_state and state is not None else out

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor, *grad_state: Tensor) -> tuple[Any, ...]:
        out, normalizer, sum_s, sum_z, *tensors = ctx.saved_tensors
        needed = zip(_TENSORS, ctx.needs_input_grad[2:], strict=True)
        wanted = dict.fromkeys(name for name, needs_grad in needed if needs_grad)
        query, key, value, initial, _ = attention_backward(
            _with(ctx.settings, tensors)._replace(wanted_gradients=tuple(wanted)),
            Output(out, normalizer, pair(sum_s, sum_z)),
            grad_out,
            LinearAttentionState(*grad_state) if grad_state else None,
            ctx.backend,
        )
        return (None, None, query, key, value, None, None, *(initial or (None, None)))


def _with(call: AttentionCall, tensors: Any) -> AttentionCall:
    """The call with these tensors in place of its own."""
    query, key, value, key_lengths, cu_seqlens, s, z = tensors
    return call._replace(
        query=query,
        key=key,
        value=value,
        key_lengths=key_lengths,
        cu_seqlens=cu_seqlens,
        initial_state=pair(s, z),
    )
