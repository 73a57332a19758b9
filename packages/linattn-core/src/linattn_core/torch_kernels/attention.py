"""The whole operator on one padded batch: allocation, and small enough groups of the batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.state import LinearAttentionState, accumulation_dtype
from linattn_core.torch_kernels import causal, noncausal
from linattn_core.torch_kernels.running_sums import RunningSums
from linattn_core.torch_kernels.tiles import Problem
from linattn_core.torch_kernels.workspace import (
    Segment,
    Workspace,
    batch_groups,
    chunk_runs,
    runs,
)


class Output(NamedTuple):
    """What the forward pass leaves.

    Attributes:
        out: (B, H, N, M), dtype of value.
        state: the last state when causal and wanted (else None), the sums when not causal.
        normalizer: (B, H, N), phi(q) . z + eps, accumulation dtype; the backward pass reads it.
    """

    out: Tensor
    state: LinearAttentionState | None
    normalizer: Tensor


class Gradients(NamedTuple):
    """What the backward pass leaves: gradients of q, k, v and of the starting state."""

    query: Tensor
    key: Tensor
    value: Tensor
    state: LinearAttentionState | None


def _group(state: LinearAttentionState | None, group: slice) -> LinearAttentionState | None:
    return None if state is None else LinearAttentionState(state.s[group], state.z[group])


def _flat(state: LinearAttentionState) -> LinearAttentionState:
    """(B * H, ...) views of the same memory."""
    return LinearAttentionState(state.s.flatten(0, 1), state.z.flatten(0, 1))


def _width(problem: Problem) -> int:
    return max(1, problem.query.shape[-1], problem.value.shape[-1])


def _groups(problem: Problem) -> Iterator[slice]:
    batch, heads = problem.query.shape[:2]
    return batch_groups(batch, heads, _width(problem), problem.query.device)


def _chunk_runs(problem: Problem) -> list[Segment]:
    batch, heads, length, feature_dim = problem.query.shape
    state = max(1, feature_dim * problem.value.shape[-1])
    return chunk_runs(length, batch * heads, _width(problem), state, problem.query.device)


def _runs(problem: Problem, x: Tensor) -> list[Segment]:
    return runs(x.shape[2], x.shape[0] * x.shape[1], _width(problem), x.device)


def _zeros(problem: Problem, dtype: torch.dtype) -> LinearAttentionState:
    batch, heads, _, feature_dim = problem.key.shape
    value_dim, device = problem.value.shape[-1], problem.value.device
    return LinearAttentionState.zeros(
        batch, heads, feature_dim, value_dim, dtype=dtype, device=device
    )


def forward(
    problem: Problem, initial: LinearAttentionState | None, *, is_causal: bool, keep_state: bool
) -> Output:
    """Linear attention of a padded batch.

    Args:
        problem: the inputs.
        initial: the starting state; causal only.
        is_causal: query i sees keys up to i.
        keep_state: the last state is wanted (the sums of a non-causal call always are).

    Cost: O(N (C + M) F) time a head, scratch of a fixed size beyond the results.
    """
    query, value = problem.query, problem.value
    dtype = accumulation_dtype(value.dtype)
    out = value.new_empty(*query.shape[:3], value.shape[-1])
    normalizer = torch.empty(query.shape[:3], dtype=dtype, device=query.device)
    state = _zeros(problem, dtype) if keep_state or not is_causal else None
    work = Workspace(dtype, query.device)
    for group in _groups(problem):
        part, last = problem.batch(group), _group(state, group)
        if is_causal:
            _causal_forward(part, _group(initial, group), last, work, out[group], normalizer[group])
        elif last is not None:
            sums = _flat(last)
            noncausal.sum_keys(part, sums, _runs(part, part.key), work)
            noncausal.read(part, sums, _runs(part, part.query), work, out[group], normalizer[group])
    return Output(out, state, normalizer)


def _causal_forward(
    problem: Problem,
    initial: LinearAttentionState | None,
    last: LinearAttentionState | None,
    work: Workspace,
    out: Tensor,
    normalizer: Tensor,
) -> None:
    length = problem.query.shape[2]
    running = RunningSums(work, initial, reverse=False, keep_end=last is not None, length=length)
    causal.forward(problem, running, _chunk_runs(problem), work, out, normalizer)
    _keep(running, last)


def _keep(running: RunningSums, target: LinearAttentionState | None) -> None:
    """Copies the sums to `target`, which holds zeros and stays so if nothing was added."""
    if target is not None and running.sums is not None:
        flat = _flat(target)
        flat.s.copy_(running.sums.s)
        flat.z.copy_(running.sums.z)


def backward(
    grad_out: Tensor,
    grad_state: LinearAttentionState | None,
    problem: Problem,
    out: Tensor,
    normalizer: Tensor,
    state: LinearAttentionState | None,
    *,
    is_causal: bool,
) -> Gradients:
    """Gradients of `forward`, in linear time and with scratch of a fixed size.

    Args:
        grad_out: (B, H, N, M).
        grad_state: of the returned state; None if it was not used.
        problem: the inputs.
        out, normalizer: what `forward` returned.
        state: causal: the starting state, None for zeros; non-causal: the sums over the keys.
        is_causal: as in `forward`.
    """
    dtype = normalizer.dtype
    grads = problem.new_gradients()
    wanted = is_causal and state is not None
    grad_initial = _zeros(problem, dtype) if wanted else None
    work = Workspace(dtype, grad_out.device)
    for group in _groups(problem):
        args = (grad_out[group], _group(grad_state, group), problem.batch(group), out[group])
        dq, dk, dv = (x[group] for x in grads)
        gradients = Gradients(dq, dk, dv, _group(grad_initial, group))
        differentiate = _causal_backward if is_causal else _noncausal_backward
        differentiate(*args, normalizer[group], _group(state, group), work, gradients)
    return Gradients(grads[0], grads[1], grads[2], grad_initial)


def _causal_backward(
    grad_out: Tensor,
    grad_state: LinearAttentionState | None,
    problem: Problem,
    out: Tensor,
    normalizer: Tensor,
    initial: LinearAttentionState | None,
    work: Workspace,
    into: Gradients,
) -> None:
    length, parts = problem.query.shape[2], _chunk_runs(problem)
    grad_normalizer = torch.empty_like(normalizer)
    sums = RunningSums(work, initial, reverse=False, keep_end=False, length=length)
    causal.query_gradient(
        grad_out, problem, out, normalizer, sums, parts, work, into.query, grad_normalizer
    )
    keep = into.state is not None
    sums = RunningSums(work, grad_state, reverse=True, keep_end=keep, length=length)
    causal.key_value_gradient(
        grad_out, problem, normalizer, grad_normalizer, sums, parts, work, into.key, into.value
    )
    _keep(sums, into.state)


def _noncausal_backward(
    grad_out: Tensor,
    grad_state: LinearAttentionState | None,
    problem: Problem,
    out: Tensor,
    normalizer: Tensor,
    sums: LinearAttentionState | None,
    work: Workspace,
    into: Gradients,
) -> None:
    assert sums is not None, "the non-causal backward pass reads the sums of the forward pass"
    grad_sums = _flat(
        _zeros(problem, normalizer.dtype) if grad_state is None else grad_state.clone()
    )
    noncausal.query_gradient(
        grad_out, problem, out, normalizer, _flat(sums), grad_sums,
        _runs(problem, problem.query), work, into.query,
    )  # fmt: skip
    noncausal.key_value_gradient(
        problem, grad_sums, _runs(problem, problem.key), work, into.key, into.value
    )
