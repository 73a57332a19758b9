"""The factors by which earlier positions have decayed, chunk by chunk, and their gradient.

With g_m the logarithm of the decay at position m, every factor is exp of a sum of g:

    weight of query i and key j in a chunk      over j < m <= i
    query i reading the state before the chunk  from the start of the chunk to i
    key j added to the state after the chunk    from j + 1 to the end of the chunk

Each g is at most 0, so no factor exceeds 1.

The gradient of g_m is the sum of w dL/dw over all contributions w to an output that have decayed at
position m: those within the chunk with j < m <= i; those from before the chunk that are read at
i >= m; those of keys j < m that are read after the chunk; and those from before the chunk that are
read after it. No term is a difference of large numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.reference import decay as factors
from linattn_core.reference_backend.tiles import Problem, load, store
from linattn_core.reference_backend.workspace import Segment, Workspace
from linattn_core.state import LinearAttentionState


class NoDecay:
    """Does nothing: for calls without decay.

    Attributes:
        across: the factors by which chunks decay the state, (chunks * B * H_kv, 1); None for 1.
    """

    across: Tensor | None = None

    def within(self, weights: Tensor) -> Tensor:
        """Multiplies the weights (rows, G * C, C) of queries and keys of a chunk, in place."""
        return weights

    def from_start(self, x: Tensor) -> Tensor:
        """Multiplies queries (rows, G * C, ...) by the decay from the chunk's start to them."""
        return x

    def to_end(self, x: Tensor) -> Tensor:
        """Multiplies keys (rows, C or 1, ...) by the decay from them to the end of the chunk."""
        return x


NO_DECAY = NoDecay()


class Decay(NoDecay):
    """The factors of one segment.

    Args:
        g: (chunks * B * H_kv, C), logarithms of the decay.
        groups: G = H / H_kv.
    """

    def __init__(self, g: Tensor, groups: int) -> None:
        self._groups = groups
        self._between = factors.between(g)[:, None]  # (rows, 1, C, C)
        self._from_start = factors.from_start(g).repeat(1, groups, 1)  # (rows, G * C, 1)
        self._to_end = factors.to_end(g)  # (rows, C, 1)
        self.across = factors.across(g)

    def within(self, weights: Tensor) -> Tensor:
        weights.unflatten(1, (self._groups, -1)).mul_(self._between)
        return weights

    def from_start(self, x: Tensor) -> Tensor:
        return x * self._from_start

    def to_end(self, x: Tensor) -> Tensor:
        return x * self._to_end


def decay_of(problem: Problem, work: Workspace, part: Segment) -> NoDecay:
    """The factors of the segment's chunks."""
    if problem.decay is None:
        return NO_DECAY
    return Decay(load(work, "decay", problem.decay, part)[..., 0], problem.call.groups)


class DecayGradient:
    """The gradient of the decay, summed in the two passes of the backward pass.

    The first pass keeps the state before each chunk for the second: N F M / C numbers per head.

    Args:
        into: (B, H_kv, L), zeros, to which the gradient is added.
        groups: G = H / H_kv.
    """

    def __init__(self, into: Tensor, groups: int) -> None:
        self._into = into[..., None]
        self._groups = groups
        self._before: dict[int, LinearAttentionState] = {}

    def reads(
        self, part: Segment, q: Tensor, g: Tensor, h: Tensor, before: LinearAttentionState
    ) -> None:
        """Adds what queries read from before their chunk; g and h have decayed from its start."""
        self._before[part.start] = before.clone()
        read = (torch.bmm(q, before.s) * g).sum(-1) + torch.bmm(q, before.z[..., None])[..., 0] * h[
            ..., 0
        ]
        per_position = read.unflatten(1, (self._groups, -1)).sum(1)
        self._add(part, factors.from_here(per_position))

    def inside(self, part: Segment, weights: Tensor, grad_weights: Tensor) -> None:
        """Adds what passes m within a chunk; `weights` have decayed, their gradients have not."""
        passed = (weights * grad_weights).unflatten(1, (self._groups, -1)).sum(1)  # (rows, C, C)
        below = factors.from_here(passed.mT).mT.tril(-1)  # the sum over i >= m, for j < m
        self._add(part, below.sum(-1))

    def writes(
        self, part: Segment, k: Tensor, v: Tensor, after: LinearAttentionState, across: Tensor
    ) -> None:
        """Adds what is read after the chunk: of its keys k, decayed to its end, and from before."""
        written = (torch.bmm(k, after.s) * v).sum(-1) + torch.bmm(k, after.z[..., None])[..., 0]
        self._add(part, factors.until_here(written))
        before = self._before.pop(part.start, None)
        if before is not None:
            through = (before.s * after.s).sum((1, 2)) + (before.z * after.z).sum(1)
            self._add(part, (across * through[:, None]).expand_as(written))

    def _add(self, part: Segment, x: Tensor) -> None:
        """Adds x (chunks * B * H_kv, C) to the segment."""
        total = self._into[..., part.start : part.stop, :]
        more = torch.empty_like(total)
        store(x.contiguous(), more, Segment(0, part.stop - part.start, part.chunks, part.size))
        total.add_(more)
