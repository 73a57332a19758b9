"""What a chunk sees in one round of hashing.

A round sorts the positions of each head and cuts them into chunks. A chunk sees itself and the
chunk before it, its window. All heads stand one behind the other, so that the chunks of all are one
list; the first chunk of a head sees nothing of the head before.

Letters: G heads of all sequences, P positions of each (padded to whole chunks), c chunk,
C = G P / c chunks in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

NOWHERE = torch.iinfo(torch.int32).max  # the position of a key that does not exist
# Taken off the score of a position with itself: it counts where nothing else is in sight.
SELF = 1e5
# Scores that are computed at once: what stays in the caches of a CPU, and what fills a GPU.
_SCORES_AT_ONCE = {"cpu": 2**18}
_SCORES_AT_ONCE_ELSEWHERE = 2**26


@dataclass(frozen=True)
class Layout:
    """How all rounds of one call are laid out.

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
        """C, of all heads together."""
        return self.groups * self.positions // self.chunk

    def blocks(self) -> list[slice]:
        """Chunks that are worked on together."""
        kind = self.lengths.device.type
        scores = _SCORES_AT_ONCE.get(kind, _SCORES_AT_ONCE_ELSEWHERE)
        size = max(1, scores // (2 * self.chunk**2))
        return [slice(i, min(i + size, self.chunks)) for i in range(0, self.chunks, size)]


@dataclass(frozen=True)
class Round:
    """The windows of one round.

    Attributes:
        layout: of the call.
        order: (G, P) int64, the positions of each head as the round sorts them.
        earlier: (rounds before, G, P) int32, the chunk of each position in each of them.
    """

    layout: Layout
    order: Tensor
    earlier: Tensor

    @cached_property
    def rows(self) -> Tensor:
        """(G P,) int64: the rows of tensors (G P, X) in this round's order."""
        layout = self.layout
        starts = torch.arange(layout.groups, device=self.order.device) * layout.positions
        return (self.order + starts.unsqueeze(1)).flatten()

    @cached_property
    def places(self) -> Tensor:
        """(G P,) int64: where each row stands in this round's order, the inverse of `rows`."""
        inverse = torch.empty_like(self.rows)
        inverse[self.rows] = torch.arange(len(self.rows), device=self.rows.device)
        return inverse

    def chunk_numbers(self) -> Tensor:
        """(G, P) int32: the chunk of each position, counted from its own head's first."""
        places = self.places.view(self.layout.groups, -1)
        return (places % self.layout.positions // self.layout.chunk).int()

    @cached_property
    def _exists(self) -> Tensor:
        return self.order < self.layout.lengths.unsqueeze(1)  # (G, P)

    @cached_property
    def _horizon(self) -> Tensor:
        """(C, c, 1) int32: the last position that each query sees; -1 for one that is padding."""
        furthest = self.order.int() if self.layout.is_causal else NOWHERE - 1
        horizon = torch.where(self._exists, furthest, -1)
        return horizon.view(-1, self.layout.chunk, 1)

    @cached_property
    def _keys(self) -> Tensor:
        """(C, 1, 2 c) int32: the position of each key of a window."""
        chunk = self.layout.chunk
        keys = torch.where(self._exists, self.order.int(), NOWHERE).flatten()
        window = windows(behind_one_chunk(keys, chunk), chunk).clone()
        firsts = window[:: self.layout.positions // chunk]
        firsts[:, :chunk] = NOWHERE  # another head's
        return window.unsqueeze(1)

    @cached_property
    def _seen(self) -> list[tuple[Tensor, Tensor]]:
        """Chunks of queries (C, c, 1) and keys (C, 1, 2 c), int32, in each earlier round."""
        chunk = self.layout.chunk
        found = []
        for numbers in self.earlier:
            ordered = numbers.flatten()[self.rows]
            keys = windows(behind_one_chunk(ordered, chunk), chunk)
            found.append((ordered.view(-1, chunk, 1), keys.unsqueeze(1)))
        return found

    def hide(self, scores: Tensor, block: slice) -> None:
        """Puts -inf where a query must not look, in the scores (chunks, c, 2 c) of a block.

        What an earlier round had in sight is hidden too, so that each key counts once.
        """
        chunk = self.layout.chunk
        scores.diagonal(chunk, -2, -1).sub_(SELF)
        hidden = self._keys[block] > self._horizon[block]
        for queries, keys in self._seen:
            behind = queries[block] - keys[block]  # chunks from the key on to the query
            hidden |= behind.bitwise_and_(-2) == 0  # 0, the same, or 1, the one before
        scores.masked_fill_(hidden, -torch.inf)


def behind_one_chunk(rows: Tensor, chunk: int) -> Tensor:
    """The rows with a chunk of zeros before them: the first chunk's window begins there."""
    return torch.cat([rows.new_zeros(chunk, *rows.shape[1:]), rows])


def windows(rows: Tensor, chunk: int) -> Tensor:
    """Windows of rows that stand behind a chunk of zeros, as a view that overlaps itself.

    (chunk + rows,) -> (C, 2 chunk); (chunk + rows, X) -> (C, X, 2 chunk), so transposed.
    """
    return rows.unfold(0, 2 * chunk, chunk)


def keys_of(query: Tensor) -> tuple[Tensor, Tensor]:
    """The queries (..., D) at length 1, which are the keys, and what they were divided by.

    A query of no length has a key of none, which no gradient turns: it is divided by infinity.
    """
    norm = query.norm(dim=-1, keepdim=True)
    norm.masked_fill_(norm == 0, torch.inf)
    return query / norm, norm


def padded_rows(x: Tensor, positions: int) -> Tensor:
    """(B, H, N, X) -> (G P, X), contiguous, with zeros behind each sequence."""
    return F.pad(x, (0, 0, 0, positions - x.shape[2])).reshape(-1, x.shape[3])
