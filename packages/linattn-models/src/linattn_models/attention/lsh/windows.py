"""The keys that a chunk sees in one round of hashing.

A round sorts the positions of each head and cuts them into chunks. A chunk sees its window: itself
and the chunk before it. The chunks of all heads form one list; the first chunk of a head sees
nothing of the previous head.

Letters: G = B H heads of all sequences, P positions of each (padded to whole chunks), c positions
per chunk, C = G P / c chunks in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

NOWHERE = torch.iinfo(torch.int32).max  # the position of a key that does not exist
# How many scores are computed at once: few enough for a CPU's caches, enough to fill a GPU.
_SCORES_AT_ONCE = {"cpu": 2**18}
_SCORES_AT_ONCE_ELSEWHERE = 2**26


@dataclass(frozen=True)
class Layout:
    """The sizes of one call, the same in all rounds.

    Attributes:
        groups: G, heads of all sequences.
        positions: P.
        chunk: c.
        is_causal: whether a position sees only those before it.
        lengths: (G,) int32, positions of each head that exist.
    """

    groups: int
    positions: int
    chunk: int
    is_causal: bool
    lengths: Tensor

    @property
    def chunks(self) -> int:
        """C, the chunks of all heads together."""
        return self.groups * self.positions // self.chunk

    def blocks(self) -> list[slice]:
        """The chunks in blocks, each small enough that its tensors stay in the caches."""
        kind = self.lengths.device.type
        scores = _SCORES_AT_ONCE.get(kind, _SCORES_AT_ONCE_ELSEWHERE)
        size = max(1, scores // (2 * self.chunk**2))
        return [slice(i, min(i + size, self.chunks)) for i in range(0, self.chunks, size)]


@dataclass(frozen=True)
class Round:
    """The windows of one round.

    Attributes:
        layout: the sizes of the call.
        order: (G, P) int64, the positions of each head, sorted as in this round.
        earlier: (earlier rounds, G, P) int32, the chunk of each position in each earlier round.
    """

    layout: Layout
    order: Tensor
    earlier: Tensor

    def rows(self, block: slice) -> Tensor:
        """(chunks * c,) int64: the rows of a block's queries in tensors (G P, X)."""
        return self.window_rows(block)[self.layout.chunk :]

    def window_rows(self, block: slice) -> Tensor:
        """((chunks + 1) * c,) int64: the rows of the chunk before the block, then of the block.

        Before the very first chunk stands a copy of it, which `hide` masks.
        """
        chunk = self.layout.chunk
        return self._rows[block.start * chunk : (block.stop + 1) * chunk]

    def chunk_numbers(self) -> Tensor:
        """(G, P) int32: the chunk of each position, counted from the first chunk of its head."""
        sorted_numbers = torch.arange(
            self.layout.positions, dtype=torch.int32, device=self.order.device
        )
        sorted_numbers //= self.layout.chunk
        return torch.empty_like(self.order, dtype=torch.int32).scatter_(
            1, self.order, sorted_numbers.expand_as(self.order)
        )

    def hide(self, scores: Tensor, block: slice) -> None:
        """Sets to -inf the scores (chunks, c, 2 c) of keys that a query of the block must not see.

        These are itself, keys that do not exist or come later, and keys seen in an earlier round.
        """
        chunk = self.layout.chunk
        scores.diagonal(chunk, -2, -1).fill_(-torch.inf)
        hidden = self._keys[block] > self._horizon[block]
        for numbers in self.earlier:
            keys = windows(numbers.view(-1)[self.window_rows(block)], chunk)  # (chunks, 2 c)
            # How many chunks the key lies before the query: with 0 or 1 it was seen in that round.
            back = keys[:, chunk:].unsqueeze(2) - keys.unsqueeze(1)
            hidden |= back.bitwise_and_(-2) == 0
        scores.masked_fill_(hidden, -torch.inf)

    @cached_property
    def _rows(self) -> Tensor:
        """(c + G P,) int64: the rows of the first chunk, then all rows, sorted as in this round."""
        layout = self.layout
        starts = torch.arange(layout.groups, device=self.order.device) * layout.positions
        rows = (self.order + starts.unsqueeze(1)).flatten()
        return torch.cat([rows[: layout.chunk], rows])

    @cached_property
    def _exists(self) -> Tensor:
        return self.order < self.layout.lengths.unsqueeze(1)  # (G, P)

    @cached_property
    def _horizon(self) -> Tensor:
        """(C, c, 1) int32: the last position that each query sees; -1 for padding."""
        furthest = self.order.int() if self.layout.is_causal else NOWHERE - 1
        horizon = torch.where(self._exists, furthest, -1)
        return horizon.view(-1, self.layout.chunk, 1)

    @cached_property
    def _keys(self) -> Tensor:
        """(C, 1, 2 c) int32: the position of each key of a window."""
        layout = self.layout
        keys = torch.where(self._exists, self.order.int(), NOWHERE).flatten()
        window = windows(torch.cat([keys[: layout.chunk], keys]), layout.chunk).clone()
        firsts = window[:: layout.positions // layout.chunk]
        firsts[:, : layout.chunk] = NOWHERE  # keys of another head, or the copy
        return window.unsqueeze(1)


def windows(rows: Tensor, chunk: int) -> Tensor:
    """The windows of consecutive chunks, as an overlapping view.

    ((chunks + 1) c,) -> (chunks, 2 c); ((chunks + 1) c, X) -> (chunks, X, 2 c), transposed.
    """
    return rows.unfold(0, 2 * chunk, chunk)


def norms_of(query: Tensor) -> Tensor:
    """The norms (..., 1) by which queries (..., D) are divided to give keys.

    The norm of a zero query is infinite here, so that its key is zero and has no gradient.
    """
    norm: Tensor = query.norm(dim=-1, keepdim=True)
    return norm.masked_fill_(norm == 0, torch.inf)


def pad_rows(x: Tensor, positions: int) -> Tensor:
    """(B, H, N, X) -> (G P, X), contiguous, with zeros after each sequence."""
    padding = positions - x.shape[2]
    if padding:  # F.pad copies even without padding
        x = F.pad(x, (0, 0, 0, padding))
    batch, heads, _, width = x.shape
    return x.reshape(batch * heads * positions, width)
