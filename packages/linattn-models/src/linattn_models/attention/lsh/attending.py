"""LSH attention forward: round by round and block by block, without a tensor of size N x N."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_models.attention.lsh.windows import Layout, Round, norms_of, windows


def attend(
    layout: Layout, rounds: list[Round], query: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    """The softmax over the union of the keys that each query sees in the rounds.

    Args:
        query: (G P, D), float32 or float64, the dtype of the computation.
        value: (G P, M), the same dtype.

    Returns:
        The outputs (G P, M), and the logarithm of each softmax's denominator, (G P, 1). It is +inf
        where a query sees only itself; its output is then its own value.
    """
    out = value.new_empty(value.shape)
    denominator = value.new_empty(len(value), 1)
    for number, hashing in enumerate(rounds):
        for block in layout.blocks():
            rows = hashing.rows(block)
            part, part_denominator = _attend_in(hashing, block, query, value)
            if number:
                _join(part, part_denominator, out[rows], denominator[rows])
            out.index_copy_(0, rows, part)
            denominator.index_copy_(0, rows, part_denominator)
    alone = denominator.view(-1).isneginf().nonzero().view(-1)
    out.index_copy_(0, alone, value[alone])
    return out, denominator.index_fill_(0, alone, torch.inf)


def _attend_in(hashing: Round, block: slice, query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs and log-denominators of one round, for the queries of a block, in its order.

    The logarithm of the denominator is -inf where a query sees no key.
    """
    chunk, rows = hashing.layout.chunk, hashing.window_rows(block)
    keys = query.index_select(0, rows)
    q = keys[chunk:].view(-1, chunk, query.shape[1])
    k = windows(keys / norms_of(keys), chunk)  # (chunks, D, 2 c)
    v = windows(value.index_select(0, rows), chunk)  # (chunks, M, 2 c)
    scores = torch.bmm(q, k)  # (chunks, c, 2 c)
    hashing.hide(scores, block)
    top = scores.amax(-1, keepdim=True).clamp_(min=torch.finfo(q.dtype).min)
    weights = scores.sub_(top).exp_()
    total = weights.sum(-1, keepdim=True)
    out = torch.bmm(weights, v.transpose(1, 2))
    out.div_(total.clamp(min=torch.finfo(q.dtype).tiny))
    return out.flatten(0, 1), top.add_(total.log_()).view(-1, 1)


def _join(out: Tensor, denominator: Tensor, other: Tensor, other_denominator: Tensor) -> None:
    """Joins two softmaxes over different keys; writes the result to `out` and `denominator`."""
    both = torch.logaddexp(denominator, other_denominator)
    finite = both.clamp(min=torch.finfo(both.dtype).min)  # -inf - -inf would be NaN
    out.mul_((denominator - finite).exp_())
    out.addcmul_(other, (other_denominator - finite).exp_())
    denominator.copy_(both)
