"""LSH attention forward: round by round, block by block, nothing of size N x N."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_models.attention.lsh.windows import Layout, Round, norms_of, windows


def attend(
    layout: Layout, rounds: list[Round], query: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The softmax over all that the rounds let each query see.

    Args:
        query: (G P, D) in the dtype to compute in.
        value: (G P, M).

    Returns:
        (G P, M), and (G P, 1) the logarithm of each softmax's denominator, infinite where a query
        sees nothing but itself: its output is its own value.
    """
    out = value.new_empty(value.shape)
    denominator = value.new_empty(len(value), 1)
    for number, found in enumerate(rounds):
        for block in layout.blocks():
            rows = found.rows(block)
            part, part_denominator = _attend_in(found, block, query, value)
            if number:
                _join(part, part_denominator, out[rows], denominator[rows])
            out.index_copy_(0, rows, part)
            denominator.index_copy_(0, rows, part_denominator)
    alone = denominator.view(-1).isneginf().nonzero().view(-1)
    out.index_copy_(0, alone, value[alone])
    return out, denominator.index_fill_(0, alone, torch.inf)


def _attend_in(found: Round, block: slice, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One round alone, for a block's queries, in the round's order.

    The logarithm of the denominator is -inf where a query sees nothing.
    """
    chunk, rows = found.layout.chunk, found.window_rows(block)
    keys = query.index_select(0, rows)
    q = keys[chunk:].view(-1, chunk, query.shape[1])
    k = windows(keys / norms_of(keys), chunk)  # (chunks, D, 2 c)
    v = windows(value.index_select(0, rows), chunk)  # (chunks, M, 2 c)
    scores = torch.bmm(q, k)  # (chunks, c, 2 c)
    found.hide(scores, block)
    top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).min)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    out = torch.bmm(weights, v.transpose(1, 2))
    out.div_(total.clamp(min=torch.finfo(q.dtype).tiny))
    return out.flatten(0, 1), top.add_(total.log_()).view(-1, 1)


def _join(out: Tensor, denominator: Tensor, more: Tensor, more_denominator: Tensor) -> None:
    """Makes of a softmax, in its place, the one over its own keys and those of another."""
    both = torch.logaddexp(denominator, more_denominator)
    reachable = both.clamp(min=torch.finfo(both.dtype).min)  # -inf - -inf would be no number
    out.mul_((denominator - reachable).exp_())
    out.addcmul_(more, (more_denominator - reachable).exp_())
    denominator.copy_(both)
