"""LSH attention forward: round by round, block by block, nothing of size N x N."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_models.lsh.windows import Layout, Round, behind_one_chunk, keys_of, windows


def attend(
    layout: Layout, rounds: list[Round], query: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The softmax over all that the rounds let each query see.

    Args:
        query: (G P, D) in the dtype to compute in.
        value: (G P, M).

    Returns:
        (G P, M), and (G P,) the logarithm of each softmax's denominator, infinite where a query
        sees nothing, whose output is 0.
    """
    out, denominator = _attend_once(layout, rounds[0], query, value)
    for later in rounds[1:]:
        more, more_denominator = _attend_once(layout, later, query, value)
        out, denominator = _joined(out, denominator, more, more_denominator)
    return out, denominator.masked_fill(denominator.isneginf(), torch.inf)


def _attend_once(
    layout: Layout, found: Round, query: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """One round alone; the logarithm of its denominator is -inf where a query sees nothing."""
    chunk = layout.chunk
    q = query.index_select(0, found.rows).view(-1, chunk, query.shape[1])
    keys, _ = keys_of(q)
    k = windows(behind_one_chunk(keys.flatten(0, 1), chunk), chunk)  # (C, D, 2 c)
    v = windows(behind_one_chunk(value.index_select(0, found.rows), chunk), chunk)  # (C, M, 2 c)
    out = q.new_empty(layout.chunks, chunk, value.shape[1])
    denominator = q.new_empty(layout.chunks, chunk, 1)
    lowest = torch.finfo(q.dtype).min
    for block in layout.blocks():
        scores = torch.bmm(q[block], k[block])  # (chunks, c, 2 c)
        found.hide(scores, block)
        top = scores.amax(-1, keepdim=True).clamp_(min=lowest)  # -inf where nothing is seen
        weights = scores.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True)
        torch.bmm(weights, v[block].transpose(1, 2), out=out[block])
        out[block].div_(total.clamp(min=torch.finfo(q.dtype).tiny))
        torch.add(top, total.log_(), out=denominator[block])
    return (
        out.flatten(0, 1).index_select(0, found.places),
        denominator.flatten().index_select(0, found.places),
    )


def _joined(
    out: Tensor, denominator: Tensor, more: Tensor, more_denominator: Tensor
) -> tuple[Tensor, Tensor]:
    """Two softmaxes over different keys as the one over all of them."""
    both = torch.logaddexp(denominator, more_denominator)
    reachable = both.clamp(min=torch.finfo(both.dtype).min)  # -inf - -inf would be no number
    out.mul_((denominator - reachable).exp_().unsqueeze(1))
    out.addcmul_(more, (more_denominator - reachable).exp_().unsqueeze(1))
    return out, both
