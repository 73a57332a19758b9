"""The two passes of one rank: its own positions, and what it exchanges with the other ranks.

Causal, with S_r the state that rank r gets from the ranks before it, A_r the sums over its own keys
and d_r the decay over its part:

    S_{r+1} = A_r + d_r S_r                    forwards
    R_{r-1} = G_r + d_r R_r                    backwards

R_r is the gradient of the state that rank r passes on, and G_r what its own queries add to that of
S_r. Non-causal, each rank gets the sums of all others, in both passes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.distributed as dist
from torch import Tensor

from linattn_core import registry
from linattn_core.calls import AttentionCall, Gradients, Output
from linattn_core.distributed.parts import Part, State, add_states, state_if, zero_states
from linattn_core.distributed.scan import scan, sum_states
from linattn_core.summation import sum_keys


class Result(NamedTuple):
    """What the forward pass returns, and the backward pass reads.

    Attributes:
        output: of the own positions; its state is None if causal.
        before: the state from the ranks before, (B, ...).
        final: the state of every sequence, on every rank; None if it is not returned.
    """

    output: Output
    before: State
    final: State


def forward(call: AttentionCall, part: Part, group: dist.ProcessGroup, backend: str) -> Result:
    """The outputs of the own positions."""
    local, initial = part.local(call), state_if(part.is_first, call.initial_state)
    before, after = _pass_states(local, initial, part, group, backend)
    own = local._replace(initial_state=add_states(initial, before, after))
    out, normalizer, state = registry.select(backend, own).attention(own)
    final = None
    if call.return_state and state is not None:
        mine = state if part.is_last else zero_states(call)
        final = sum_states(group, mine.clone())
    return Result(Output(out, normalizer, None if call.is_causal else state), before, final)


def _pass_states(
    local: AttentionCall, initial: State, part: Part, group: dist.ProcessGroup, backend: str
) -> tuple[State, State]:
    """The state from before, and for non-causal calls the one from after."""
    if group.size() == 1:
        return None, None
    if part.is_last and local.is_causal:
        state = zero_states(local)
    else:  # the last rank passes its sums to earlier ranks, where no initial state is missing
        first = None if part.is_last else initial
        state = sum_keys(local._replace(initial_state=first), backend)
    return scan(group, [state], part.decay(local), before=True, after=not local.is_causal)


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
    grad_state = state_if(part.is_last, final)
    initial = add_states(state_if(part.is_first, call.initial_state), result.before)
    if not call.is_causal:  # reads the sums, and of the initial state only its shape
        initial = result.output.state
    local = part.local(call)._replace(wanted_gradients=call.wanted_gradients, initial_state=initial)
    if group.size() > 1:
        passed = _pass_gradients(local, part, group, backend, result.output, upstream, grad_state)
        grad_state = add_states(grad_state, *passed)
    gradients = _differentiate(local, backend, result.output, upstream, grad_state)
    if call.initial_state is None or "initial_state" not in call.wanted_gradients:
        return gradients._replace(initial_state=None)
    return gradients._replace(initial_state=state_if(part.is_first, gradients.initial_state))


def _pass_gradients(
    local: AttentionCall, part: Part, group: dist.ProcessGroup, backend: str, output: Output,
    upstream: Upstream, grad_state: State,
) -> tuple[State, State]:  # fmt: skip
    """The gradients from ranks before (non-causal) and after, for the own sums."""
    gradient: State = zero_states(local)
    if not (local.is_causal and part.is_first):
        alone = local._replace(wanted_gradients=("initial_state",))
        gradient = _differentiate(alone, backend, output, upstream, grad_state).initial_state
    assert gradient is not None, "it is the one that was wanted"
    return scan(group, [gradient], part.decay(local), before=not local.is_causal, after=True)


def _differentiate(
    local: AttentionCall, backend: str, output: Output, upstream: Upstream, grad_state: State
) -> Gradients:
    extra = () if upstream.normalizer is None else (upstream.normalizer,)
    chosen = registry.select(backend, local)
    return chosen.attention_backward(local, output, upstream.out, grad_state, *extra)
