"""A scan of states over the ranks of a group, by two all-to-alls.

Each rank gets one slice of the flattened state of every rank, scans it over all ranks, and gives
each its result. So a rank sends and receives two states, however many ranks there are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import pad

from linattn_core.state import LinearAttentionState


def scan(
    group: dist.ProcessGroup,
    states: Sequence[LinearAttentionState],
    factor: Tensor,
    *,
    before: bool,
    after: bool,
) -> tuple[LinearAttentionState | None, LinearAttentionState | None]:
    """What passes into this rank from the ranks before it, and from those after it.

        before_0 = 0,       before_r = states[0]_{r-1} + factor_{r-1} before_{r-1}
        after_{R-1} = 0,    after_r = states[-1]_{r+1} + factor_{r+1} after_{r+1}

    Args:
        states: the state that this rank passes to later ranks, and that to earlier ones; one state
            if both are equal, or one of them is not asked for.
        factor: (B, H), by which this rank multiplies what passes through it.
        before, after: which of the two results are wanted; None for the other.
    """
    ranks, (batch, heads, dim, width) = group.size(), states[0].s.shape
    rows = [torch.cat([x.s, x.z[..., None]], -1).flatten(2).flatten(0, 1) for x in states]
    size = -(-rows[0].shape[1] // ranks)
    slices = [_split_rows(x, ranks, size) for x in rows]
    weights = factor.reshape(1, -1, 1).expand(ranks, -1, 1)
    received = _exchange(group, torch.cat([*slices, weights], -1))
    parts, factors = received[..., :-1].split(size, -1), received[..., -1:]
    results = []
    if before:
        results.append(_accumulate(parts[0], factors))
    if after:
        results.append(_accumulate(parts[-1].flip(0), factors.flip(0)).flip(0))
    returned = _exchange(group, torch.cat(results, -1)).split(size, -1)
    scanned = iter([_join_rows(x, (batch, heads, dim, width)) for x in returned])
    return next(scanned) if before else None, next(scanned) if after else None


def sum_states(group: dist.ProcessGroup, state: LinearAttentionState) -> LinearAttentionState:
    """The sum of the ranks' states, on every rank; overwrites `state`."""
    for x in state:
        dist.all_reduce(x, group=group)
    return state


def _accumulate(parts: Tensor, factors: Tensor) -> Tensor:
    """(R, rows, size): at r, the sum of the parts before r, each times the factors between."""
    results = torch.zeros_like(parts)
    for r in range(1, parts.shape[0]):
        torch.addcmul(parts[r - 1], factors[r - 1], results[r - 1], out=results[r])
    return results


def _split_rows(rows: Tensor, ranks: int, size: int) -> Tensor:
    """(rows, width) -> (R, rows, size), padded with zeros."""
    padded = pad(rows, (0, ranks * size - rows.shape[1]))
    return padded.view(-1, ranks, size).transpose(0, 1)


def _exchange(group: dist.ProcessGroup, x: Tensor) -> Tensor:
    """Sends x[r] to rank r; returns what the ranks sent here."""
    x = x.contiguous()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received


def _join_rows(slices: Tensor, shape: tuple[int, int, int, int]) -> LinearAttentionState:
    """(R, rows, size) -> a state of this shape of S."""
    batch, heads, dim, width = shape
    rows = slices.transpose(0, 1).flatten(1)[:, : dim * (width + 1)]
    whole = rows.reshape(batch, heads, dim, width + 1)
    return LinearAttentionState(whole[..., :-1].clone(), whole[..., -1].clone())
