"""The whole operator on one padded batch: allocates the results and cuts the batch into groups."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from linattn_core.calls import Gradients, Output
from linattn_core.native import new_output
from linattn_core.reference_backend import causal, noncausal
from linattn_core.reference_backend.decay import DecayGradient
from linattn_core.reference_backend.running_sums import RunningSums
from linattn_core.reference_backend.tiles import Problem, Upstream, some
from linattn_core.reference_backend.workspace import (
    Segment,
    Workspace,
    batch_groups,
    chunk_runs,
    runs,
)
from linattn_core.state import LinearAttentionState


def forward(problem: Problem) -> Output:
    """Linear attention of a padded batch.

    Cost per head: causal O(N (F M + C (F + M))) time, non-causal O((N + L) F M); scratch memory of
    a fixed size beyond the results.
    """
    call = problem.call
    output = new_output(call)
    for x in output.state or ():
        x.zero_()
    work = Workspace(output.normalizer.dtype, call.device)
    compute = _causal_forward if call.is_causal else _noncausal_forward
    for group in _groups(problem):
        compute(problem.batch(group), _group(problem, output, group), work)
    return output


def backward(problem: Problem, output: Output, upstream: Upstream) -> Gradients:
    """Gradients of `forward`, in linear time and with scratch memory of a fixed size.

    Args:
        problem: the problem of the forward pass.
        output: what `forward` returned.
        upstream: the upstream gradients.
    """
    call, dtype = problem.call, output.normalizer.dtype
    keeps_initial = call.initial_state is not None and "initial_state" in call.wanted_gradients
    grad_initial = _zeros(problem, dtype) if keeps_initial else None
    gradients = problem.new_gradients(grad_initial)
    work = Workspace(dtype, call.device)
    differentiate = _causal_backward if call.is_causal else _noncausal_backward
    for group in _groups(problem):
        query, key, value, decay = (
            None if x is None else x[group]
            for x in (gradients.query, gradients.key, gradients.value, gradients.log_decay)
        )
        query = None if query is None else problem.group_heads(query)
        into = Gradients(query, key, value, some(grad_initial, group), decay)
        arriving = _upstream(problem, upstream, group)
        differentiate(problem.batch(group), _group(problem, output, group), arriving, work, into)
    return gradients


def _group(problem: Problem, output: Output, group: slice) -> Output:
    """The results of a group of sequences, with the heads as in `Problem.group_heads`."""
    out, normalizer = (problem.group_heads(x[group]) for x in output[:2])
    return Output(out, normalizer, some(output.state, group))


def _upstream(problem: Problem, upstream: Upstream, group: slice) -> Upstream:
    normalizer = upstream.normalizer
    return Upstream(
        problem.group_heads(upstream.out[group]),
        None if normalizer is None else problem.group_heads(normalizer[group]),
        some(upstream.state, group),
        upstream.normalized,
    )


def _flat(state: LinearAttentionState) -> LinearAttentionState:
    """(B * H, ...) views of the same memory."""
    return LinearAttentionState(state.s.flatten(0, 1), state.z.flatten(0, 1))


def _width(problem: Problem) -> int:
    return max(1, problem.call.feature_dim, problem.call.value_dim)


def _groups(problem: Problem) -> Iterator[slice]:
    call = problem.call
    return batch_groups(call.batch, call.heads, _width(problem), call.device)


def _chunk_runs(problem: Problem) -> list[Segment]:
    call = problem.call
    rows, state = call.batch * call.heads, call.feature_dim * call.value_dim
    return chunk_runs(call.query_length, rows, _width(problem), state, call.device)


def _runs(problem: Problem, x: Tensor) -> list[Segment]:
    return runs(x.shape[2], x.shape[0] * x.shape[1], _width(problem), x.device)


def _zeros(problem: Problem, dtype: torch.dtype) -> LinearAttentionState:
    call = problem.call
    return LinearAttentionState.zeros(
        call.batch, call.kv_heads, call.feature_dim, call.value_dim, dtype=dtype, device=call.device
    )


def _causal_forward(problem: Problem, into: Output, work: Workspace) -> None:
    call = problem.call
    running = RunningSums(
        work, call.initial_state, reverse=False, keep_end=into.state is not None,
        length=call.query_length,
    )  # fmt: skip
    causal.forward(problem, running, _chunk_runs(problem), work, into)
    _keep(running, into.state)


def _noncausal_forward(problem: Problem, into: Output, work: Workspace) -> None:
    sums = _sums(into)
    initial = problem.call.initial_state
    if initial is not None:
        sums.s.copy_(initial.s.flatten(0, 1))
        sums.z.copy_(initial.z.flatten(0, 1))
    noncausal.sum_keys(problem, sums, _runs(problem, problem.call.key), work)
    noncausal.read(problem, sums, _runs(problem, problem.call.query), work, into)


def _sums(output: Output) -> LinearAttentionState:
    assert output.state is not None, "a non-causal call keeps the sums over its keys"
    return _flat(output.state)


def _keep(running: RunningSums, target: LinearAttentionState | None) -> None:
    """Copies the sums to `target`, which holds zeros; they stay if nothing was added."""
    if target is not None and running.sums is not None:
        flat = _flat(target)
        flat.s.copy_(running.sums.s)
        flat.z.copy_(running.sums.z)


def _causal_backward(
    problem: Problem, output: Output, upstream: Upstream, work: Workspace, into: Gradients
) -> None:
    call, parts = problem.call, _chunk_runs(problem)
    length = call.query_length
    grad_normalizer = torch.empty_like(output.normalizer)
    grad_decay = None
    if into.log_decay is not None:
        grad_decay = DecayGradient(into.log_decay, call.groups)
    sums = RunningSums(work, call.initial_state, reverse=False, keep_end=False, length=length)
    causal.query_gradient(
        problem, output, upstream, sums, parts, work, into, grad_normalizer, grad_decay
    )
    keep = into.initial_state is not None
    if not keep and all(x is None for x in (into.key, into.value, grad_decay)):
        return
    sums = RunningSums(work, upstream.state, reverse=True, keep_end=keep, length=length)
    causal.key_value_gradient(
        problem, output, upstream, grad_normalizer, sums, parts, work, into, grad_decay
    )
    _keep(sums, into.initial_state)
    if into.log_decay is not None and problem.absent is not None:
        into.log_decay.masked_fill_(problem.absent[..., 0], 0)


def _noncausal_backward(
    problem: Problem, output: Output, upstream: Upstream, work: Workspace, into: Gradients
) -> None:
    call = problem.call
    grad_sums = _sums_gradient(problem, output, upstream, into)
    noncausal.query_gradient(
        problem, output, upstream, _sums(output), grad_sums, _runs(problem, call.query), work, into
    )
    if grad_sums is not None and not (into.key is None and into.value is None):
        noncausal.key_value_gradient(problem, grad_sums, _runs(problem, call.key), work, into)


def _sums_gradient(
    problem: Problem, output: Output, upstream: Upstream, into: Gradients
) -> LinearAttentionState | None:
    """The upstream gradient of the sums, to add to; None where only that of query is wanted."""
    if into.initial_state is None and into.key is None and into.value is None:
        return None
    state = upstream.state
    grad_sums = _zeros(problem, output.normalizer.dtype) if state is None else state.clone()
    if into.initial_state is not None:  # the gradient of the sums is that of the initial state
        for target, source in zip(into.initial_state, grad_sums, strict=True):
            target.copy_(source)
        grad_sums = into.initial_state
    return _flat(grad_sums)
