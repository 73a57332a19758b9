"""The factors by which earlier positions have decayed, chunk by chunk, and their gradient.

With g_m the logarithms of the decay, weights within a chunk are multiplied by exp of the sum of g_m
over j < m <= i; what comes from before the chunk by that over its start to i; what goes to its end
by that over j + 1 to the end. All are sums of numbers of at most 0, so no factor exceeds 1.

The gradient to g_m is the sum of whatever passes position m: of the weights T_ij of the loss with
j < m <= i within the chunk; of what reads at i >= m from before the chunk; of what writes at j < m
for after the chunk; and of what passes the whole chunk. No term is a difference of large ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.reference import decay as factors
from linattn_core.state import LinearAttentionState
from linattn_core.torch_kernels.tiles import Problem, load, store
from linattn_core.torch_kernels.workspace import Segment, Workspace


class NoDecay:
    """Everything stays as it is.

    Attributes:
        across: the factor by which a chunk decays the state, (chunks * B * H, 1); None for 1.
    """

    across: Tensor | None = None

    def within(self, weights: Tensor) -> Tensor:
        """Weights (rows, G * C, C) of queries and keys of a chunk, in place."""
        return weights

    def from_start(self, x: Tensor) -> Tensor:
        """Rows of queries (rows, G * C, ...) that read what was before the chunk."""
        return x

    def to_end(self, x: Tensor) -> Tensor:
        """Rows of keys (rows, C or 1, ...) as the end of the chunk has them."""
        return x


NO_DECAY = NoDecay()


class Decay(NoDecay):
    """The factors of one segment.

    Args:
        g: (chunks * B * H_kv, C), logarithms.
        groups: G.
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
    """The gradient to the decay, gathered in the two passes of the backward pass.

    The states before each chunk are kept from the first to the second, N F M / C numbers a head.

    Args:
        into: (B, H_kv, L), zeros.
        groups: G.
    """

    def __init__(self, into: Tensor, groups: int) -> None:
        self._into = into[..., None]
        self._groups = groups
        self._before: dict[int, LinearAttentionState] = {}

    def reads(
        self, part: Segment, q: Tensor, g: Tensor, h: Tensor, before: LinearAttentionState
    ) -> None:
        """What queries read from before their chunk; g and h are already decayed from its start."""
        self._before[part.start] = before.clone()
        read = (torch.bmm(q, before.s) * g).sum(-1) + torch.bmm(q, before.z[..., None])[..., 0] * h[
            ..., 0
        ]
        per_position = read.unflatten(1, (self._groups, -1)).sum(1)
        self._add(part, factors.from_here(per_position))

    def inside(self, part: Segment, weights: Tensor, grad_weights: Tensor) -> None:
        """What passes within a chunk: `weights` with decay, their gradients without it."""
        passed = (weights * grad_weights).unflatten(1, (self._groups, -1)).sum(1)  # (rows, C, C)
        below = factors.from_here(passed.mT).mT.tril(-1)  # the sum over i >= m, for j < m
        self._add(part, below.sum(-1))

    def writes(
        self, part: Segment, k: Tensor, v: Tensor, after: LinearAttentionState, across: Tensor
    ) -> None:
        """What keys write for after their chunk, and what passes it; k is decayed to its end."""
        written = (torch.bmm(k, after.s) * v).sum(-1) + torch.bmm(k, after.z[..., None])[..., 0]
        self._add(part, factors.until_here(written))
        before = self._before.pop(part.start, None)
        if before is not None:
            through = (before.s * after.s).sum((1, 2)) + (before.z * after.z).sum(1)
            self._add(part, (across * through[:, None]).expand_as(written))

    def _add(self, part: Segment, x: Tensor) -> None:
        """Adds (chunks * B * H_kv, C) to the segment."""
        total = self._into[..., part.start : part.stop, :]
        more = torch.empty_like(total)
        store(x.contiguous(), more, Segment(0, part.stop - part.start, part.chunks, part.size))
        total.add_(more)
