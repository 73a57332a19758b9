"""The factors of decay within a chunk, and the sums that the gradient of its logarithm needs.

The gradient at position m is the sum of w dL/dw over all contributions w that have decayed there:
those of keys j < m to queries i >= m of the chunk, what is read at i >= m from before the chunk,
what is read after it of keys j < m, and what is read after it from before it
(see linattn_core.reference_backend.decay). No term is a difference of large numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decay_between(decay, base, positions, exists, CHUNK: tl.constexpr):
    """(C, C): exp of the decay's sum over j < m <= i, at [i, j]; 1 for j >= i.

    Also the decay from the start of the chunk to each position, from each position to the end of
    the chunk, and across it. No factor is the exp of a difference, which could be inf - inf.
    """
    place = tl.arange(0, CHUNK)
    g = tl.load(decay + base + positions, mask=exists, other=0.0).to(tl.float32)
    later = tl.where(place[:, None] > place[None, :], g[:, None], 0.0)
    between = tl.exp(tl.cumsum(later, 0))
    to_end = tl.sum(tl.where(place[:, None] == CHUNK - 1, between, 0.0), 0)
    return between, tl.exp(tl.cumsum(g, 0)), to_end, tl.exp(tl.sum(g, 0))


@triton.jit
def sum_from_here(x):
    """(C,): at m, the sum of x_i over i >= m."""
    place = tl.arange(0, x.shape[0])
    return tl.sum(tl.where(place[:, None] >= place[None, :], x[:, None], 0.0), 0)


@triton.jit
def sum_until_here(x):
    """(C,): at m, the sum of x_j over j < m."""
    place = tl.arange(0, x.shape[0])
    return tl.sum(tl.where(place[:, None] < place[None, :], x[:, None], 0.0), 0)


@triton.jit
def sum_across_here(x):
    """(C, C) to (C,): at m, the sum of x_ij over j < m <= i."""
    place = tl.arange(0, x.shape[0])
    below = tl.cumsum(x, 0, reverse=True)
    return tl.sum(tl.where(place[:, None] > place[None, :], below, 0.0), 1)
