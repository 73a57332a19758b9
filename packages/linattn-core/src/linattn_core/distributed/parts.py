"""What one rank holds: a part of every sequence of the batch, or of packed sequences."""

from __future__ import annotations

import functools
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from linattn_core.calls import AttentionCall
from linattn_core.reference.definition import decay_of_present
from linattn_core.state import LinearAttentionState, accumulation_dtype


class Part(NamedTuple):
    """One rank's part of a call.

    "Rows" are states in the order of the part's own sequences: the rows of the batch, or the packed
    sequences that have positions here. A sequence that is cut by the start or the end of the part
    passes a state over it.

    Attributes:
        start: positions of all ranks before.
        bounds: where the own sequences begin and end; two numbers unless they are packed.
        sequences: the indices of the own sequences, low and high; (0, 1) unless they are packed.
        from_before: whether the first sequence began on an earlier rank.
        to_later: whether the last sequence goes on on a later rank.
        empty: packed sequences without positions between two parts, for rank 0, which reads and
            returns their states.
    """

    start: int
    bounds: list[int]
    sequences: tuple[int, int]
    from_before: bool
    to_later: bool
    empty: list[int]

    @classmethod
    def of(cls, call: AttentionCall, lengths: list[int], rank: int) -> Part:
        """The part of this rank; `lengths` are those of all parts, 0 where no one needs them."""
        start, own = sum(lengths[:rank]), call.key_length
        if call.cu_seqlens is None:
            return cls(start, [0, own], (0, 1), rank > 0, rank < len(lengths) - 1, [])
        whole, end = call.cu_seqlens.tolist(), start + own
        # An empty part between two positions of a sequence belongs to it.
        inside = [
            i
            for i, (low, high) in enumerate(pairwise(whole))
            if (low < end and high > start) or (low < start == end < high)
        ]
        cuts = set(accumulate(lengths, initial=0))
        empty = [i for i, (low, high) in enumerate(pairwise(whole)) if low == high and low in cuts]
        if not inside:
            return cls(start, [0, own], (0, 0), False, False, empty if rank == 0 else [])
        first, last = inside[0], inside[-1]
        inner = [x - start for x in whole[first + 1 : last + 1]]
        return cls(
            start, [0, *inner, own], (first, last + 1), whole[first] < start,
            whole[last + 1] > end, empty if rank == 0 else [],
        )  # fmt: skip

    @property
    def rows(self) -> int:
        """The number of own sequences that are packed here; 1 for a batch or one of them."""
        return len(self.bounds) - 1

    @property
    def is_passed(self) -> bool:
        """Whether one sequence passes the whole part."""
        return self.rows == 1 and self.from_before and self.to_later

    @property
    def beginning(self) -> slice:
        """The own sequences that begin here."""
        return slice(int(self.from_before), None)

    @property
    def ending(self) -> slice:
        """The own sequences that end here."""
        return slice(None, self.rows - int(self.to_later))

    def local(self, call: AttentionCall) -> AttentionCall:
        """The call on the own positions, without an initial state."""
        lengths, packed = call.key_lengths, None
        if lengths is not None:
            lengths = (lengths - self.start).clamp(0, call.key_length)
        if call.cu_seqlens is not None and self.rows > 1:
            packed = torch.tensor(self.bounds, device=call.device)
        return call._replace(
            key_lengths=lengths, cu_seqlens=packed, initial_state=None, requires_grad=True
        )

    def first(self, call: AttentionCall) -> AttentionCall:
        """The first own sequence (all rows of a batch) of a local call."""
        return _slice(call, 0, self.bounds[1]) if self.rows > 1 else call

    def last(self, call: AttentionCall) -> AttentionCall:
        """The last own sequence of a local call."""
        return _slice(call, self.bounds[-2], self.bounds[-1]) if self.rows > 1 else call

    def decay(self, local: AttentionCall) -> Tensor:
        """(B, H_kv): the factor on a state that passes the part, 0 where none does."""
        shape, dtype = (local.batch, local.kv_heads), accumulation_dtype(local.value_dtype)
        if not self.is_passed:
            return torch.zeros(shape, dtype=dtype, device=local.device)
        if local.log_decay is None:
            return torch.ones(shape, dtype=dtype, device=local.device)
        return decay_of_present(local).sum(-1).exp()

    def select(self, call: AttentionCall, state: State, own: slice = slice(None)) -> State:
        """The rows of a state of all sequences, 0 for those that are not among `own`."""
        if state is None:
            return None
        if call.cu_seqlens is None:
            return state if range(1)[own] else LinearAttentionState(*map(torch.zeros_like, state))
        rows, (low, high) = zero_states(call, self.rows), self.sequences
        if high > low:
            for new, x in zip(rows, state, strict=True):
                new[own] = x[low:high][own]
        return rows

    def spread(
        self, call: AttentionCall, rows: State, own: slice = slice(None)
    ) -> LinearAttentionState:
        """The inverse of `select`: a state of all sequences, 0 for those of other ranks."""
        state, (low, high) = zero_states(call, call.num_sequences), self.sequences
        for new, x in zip(state, rows or (), strict=False):
            if call.cu_seqlens is not None:
                if high > low:
                    new[low:high][own] = x[own]
            elif range(1)[own]:
                new.copy_(x)
        return state

    def add(self, call: AttentionCall, rows: State, before: State, after: State) -> State:
        """Rows plus what enters the first sequence from before, and the last from after."""
        if before is None and after is None:
            return rows
        if call.cu_seqlens is None:
            terms = [x for x in (rows, before, after) if x is not None]
            return LinearAttentionState(
                *(functools.reduce(torch.add, x) for x in zip(*terms, strict=True))
            )
        total = zero_states(call, self.rows) if rows is None else rows.clone()
        for row, coming in ((0, before), (-1, after)):
            for new, x in zip(total, coming or (), strict=False):
                new[row] += x[0]
        return total


State = LinearAttentionState | None


def zero_states(call: AttentionCall, sequences: int) -> LinearAttentionState:
    """A state of zeros for so many sequences; ranks pass that of `call.batch` of them."""
    return LinearAttentionState.zeros(
        sequences, call.kv_heads, call.feature_dim, call.value_dim,
        dtype=call.value_dtype, device=call.device,
    )  # fmt: skip


def _slice(call: AttentionCall, low: int, high: int) -> AttentionCall:
    """Positions low to high of a packed local call, as one sequence."""
    mask, decay = call.attn_mask, call.log_decay
    return call._replace(
        query=call.query[:, :, low:high], key=call.key[:, :, low:high],
        value=call.value[:, :, low:high], cu_seqlens=None,
        attn_mask=None if mask is None else mask[:, low:high],
        log_decay=None if decay is None else decay[:, :, low:high],
    )  # fmt: skip
