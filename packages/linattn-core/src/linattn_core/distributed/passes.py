"""The two passes of one rank: its own positions, and what it exchanges with the other ranks.

Causal, with S_r the state that rank r gets from the ranks before it, A_r the sums over its own keys
and d_r the decay over its part:

    S_{r+1} = A_r + d_r S_r                    forwards
    R_{r-1} = G_r + d_r R_r                    backwards

R_r is the gradient of the state that rank r passes on, and G_r what its own queries add to that of
S_r. Non-causal, each rank gets the sums of all others, in both passes. A boundary of packed
sequences within a part is d_r = 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from linattn_core import registry
from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.distributed.parts import Part, State, zero_states
from linattn_core.distributed.scan import scan, sum_states
from linattn_core.state import LinearAttentionState
from linattn_core.summation import sum_keys


class Result(NamedTuple):
    """What the forward pass returns, and the backward pass reads.

    Attributes:
        output: of the own positions; its state has one row per own sequence, and is None if causal.
        before: the state from the ranks before, (B, ...), or of the first packed sequence (1, ...).
        final: the state of every sequence, on every rank; None if it is not returned.
    """

    output: Output
    before: State
    final: State


def forward(call: AttentionCall, part: Part, group: dist.ProcessGroup, backend: str) -> Result:
    """The outputs of the own positions."""
    local, rows = part.local(call), part.select(call, call.initial_state, part.beginning)
    before, after = _pass_states(call, local, rows, part, group, backend)
    initial = part.add(call, rows, before, after)
    own = local._replace(initial_state=initial)
    out, normalizer, state = registry.select(backend, own).attention(own)
    final = _collect(call, part, state, group) if call.return_state else None
    return Result(Output(out, normalizer, None if call.is_causal else state), before, final)


def _pass_states(
    call: AttentionCall, local: AttentionCall, rows: State, part: Part,
    group: dist.ProcessGroup, backend: str,
) -> tuple[State, State]:  # fmt: skip
    """The state from before, and for non-causal calls the one from after."""
    if group.size() == 1:
        return None, None
    last = part.last(local)._replace(initial_state=_row(call, rows, -1))
    states = [sum_keys(last, backend) if part.to_later else zero_states(call, call.batch)]
    if not call.is_causal:
        first = part.first(local)
        if call.cu_seqlens is not None:
            states.append(
                sum_keys(first, backend) if part.from_before else zero_states(call, call.batch)
            )
        elif not part.to_later:
            states = [sum_keys(first, backend)]
    return scan(group, states, part.decay(local), before=True, after=not call.is_causal)


def _collect(
    call: AttentionCall, part: Part, rows: State, group: dist.ProcessGroup
) -> LinearAttentionState:
    """The final states of all sequences, each from the rank where its sequence ends."""
    final = part.spread(call, rows, part.ending)
    if call.initial_state is not None and part.empty:
        for new, x in zip(final, call.initial_state, strict=True):
            new[part.empty] = x[part.empty]
    return sum_states(group, final)


def _row(call: AttentionCall, rows: State, row: int) -> State:
    """The state of the first (0) or last (-1) own sequence; of a batch all rows."""
    if rows is None or call.cu_seqlens is None:
        return rows
    return LinearAttentionState(*(x[row][None] for x in rows))


class Upstream(NamedTuple):
    """The upstream gradients of one rank.

    Attributes:
        out: (B, H, N, M).
        normalizer: (B, H, N), or None.
        final: of the states of all sequences; None if they were not returned.
    """

    out: Tensor
    normalizer: Tensor | None
    final: State


def backward(
    call: AttentionCall, part: Part, group: dist.ProcessGroup, backend: str, result: Result,
    upstream: Upstream,
) -> Gradients:  # fmt: skip
    """The gradients of the own tensors; that of the initial state where its sequence begins."""
    final = None if upstream.final is None else sum_states(group, upstream.final.clone())
    grad_ending = part.select(call, final, part.ending)
    local = part.local(call)._replace(wanted_gradients=call.wanted_gradients)
    rows = part.select(call, call.initial_state, part.beginning)
    initial = part.add(call, rows, result.before, None)
    if not call.is_causal:  # reads the sums, and of the initial state only its shape
        initial = result.output.state
    local = local._replace(initial_state=initial)
    grad_state = grad_ending
    if group.size() > 1:
        before, after = _pass_gradients(
            call, local, part, group, backend, result.output, upstream, grad_ending
        )
        grad_state = part.add(call, grad_ending, before, after)
    extra = () if upstream.normalizer is None else (upstream.normalizer,)
    chosen = registry.select(backend, local)
    gradients = chosen.attention_backward(local, result.output, upstream.out, grad_state, *extra)
    if call.initial_state is None or "initial_state" not in call.wanted_gradients:
        return gradients._replace(initial_state=None)
    own = part.spread(call, gradients.initial_state, part.beginning)
    if final is not None and part.empty:
        for new, x in zip(own, final, strict=True):
            new[part.empty] = x[part.empty]
    return gradients._replace(initial_state=own)


def _pass_gradients(
    call: AttentionCall, local: AttentionCall, part: Part, group: dist.ProcessGroup, backend: str,
    output: Output, upstream: Upstream, grad_ending: State,
) -> tuple[State, State]:  # fmt: skip
    """The gradients from ranks before (non-causal) and after, for the own sums."""

    def own_gradient(row: int) -> LinearAttentionState:
        low, high = part.bounds[-2:] if row else part.bounds[:2]
        one = part.last(local) if row else part.first(local)
        one = one._replace(
            initial_state=_row(call, local.initial_state, row), wanted_gradients=("initial_state",)
        )
        queries = slice(low, high) if part.rows > 1 else slice(None)
        state = _row(call, output.state, row)
        out, normalizer = (x[:, :, queries].contiguous() for x in output[:2])
        grad_normalizer = upstream.normalizer
        extra = () if grad_normalizer is None else (grad_normalizer[:, :, queries],)
        chosen = registry.select(backend, one)
        gradient = chosen.attention_backward(
            one,
            Output(out, normalizer, state),
            upstream.out[:, :, queries],
            _row(call, grad_ending, row),
            *extra,
        ).initial_state
        assert gradient is not None, "it is the one that was wanted"
        return gradient

    to_before = own_gradient(0) if part.from_before else zero_states(call, call.batch)
    if call.is_causal:
        return scan(group, [to_before], part.decay(local), before=False, after=True)
    if call.cu_seqlens is None:
        states = [own_gradient(0)]
    else:
        states = [own_gradient(-1) if part.to_later else zero_states(call, call.batch), to_before]
    return scan(group, states, part.decay(local), before=True, after=True)
