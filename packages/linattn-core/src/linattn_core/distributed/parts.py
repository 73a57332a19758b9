"""What one rank holds: a part of every sequence of the batch."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall
from linattn_core.reference.definition import decay_of_present
from linattn_core.state import LinearAttentionState, accumulation_dtype


class Part(NamedTuple):
    """One rank's part of a call.

    Attributes:
        start: positions of all ranks before.
        is_first, is_last: whether the sequences begin here, and end here.
    """

    start: int
    is_first: bool
    is_last: bool

    @classmethod
    def of(cls, lengths: list[int], rank: int) -> Part:
        """The part of this rank; `lengths` are those of all parts, 0 where no one needs them."""
        return cls(sum(lengths[:rank]), rank == 0, rank == len(lengths) - 1)

    def local(self, call: AttentionCall) -> AttentionCall:
        """The call on the own positions, without an initial state."""
        lengths = call.key_lengths
        if lengths is not None:
            lengths = (lengths - self.start).clamp(0, call.key_length)
        return call._replace(key_lengths=lengths, initial_state=None, requires_grad=True)

    def decay(self, local: AttentionCall) -> Tensor:
        """(B, H_kv): the factor on a state that passes the part, 0 where none does."""
        shape, dtype = (local.batch, local.kv_heads), accumulation_dtype(local.value_dtype)
        if self.is_first or self.is_last:
            return torch.zeros(shape, dtype=dtype, device=local.device)
        if local.log_decay is None:
            return torch.ones(shape, dtype=dtype, device=local.device)
        return decay_of_present(local).sum(-1).exp()


State = LinearAttentionState | None


def state_if(condition: bool, state: State) -> State:
    """The state where the condition holds, else zeros of its shape; None stays None."""
    if state is None or condition:
        return state
    return LinearAttentionState(*map(torch.zeros_like, state))


def add_states(*states: State) -> State:
    """The sum of those that are not None; None where all are."""
    terms = [x for x in states if x is not None]
    if not terms:
        return None
    return LinearAttentionState(*(functools.reduce(torch.add, x) for x in zip(*terms, strict=True)))


def zero_states(call: AttentionCall) -> LinearAttentionState:
    """A state of zeros for the sequences of the batch."""
    return LinearAttentionState.zeros(
        call.batch, call.kv_heads, call.feature_dim, call.value_dim,
        dtype=call.value_dtype, device=call.device,
    )  # fmt: skip
