"""LSH attention forward and backward, round by round and block by block.

No tensor has size N x N. The backward pass recomputes the weights of each round.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    """Outputs of a round for a block of queries, and log-denominators: -inf where none is seen."""
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


@dataclass(frozen=True)
class Saved:
    """The tensors of the forward pass, and the upstream gradient.

    Attributes:
        denominator: (G P, 1), from `attend`.
        query: (G P, D).
        value, out, grad_out: (G P, M).
    """

    denominator: Tensor
    query: Tensor
    value: Tensor
    out: Tensor
    grad_out: Tensor


def differentiate(layout: Layout, rounds: list[Round], saved: Saved) -> tuple[Tensor, Tensor]:
    """The gradients of queries (G P, D) and values (G P, M).

    A query sees each key in one round only. So, with p the weights of the whole softmax,

        ds_ij = p_ij (dout_i . v_j - dout_i . out_i),    dq_i += ds_ij k_j,    dk_j += ds_ij q_i

    is summed over the rounds. The choice of a bucket has no gradient. Where a query sees only
    itself, all weights are 0, because the denominator is infinite.
    """
    grad_query, grad_value = torch.zeros_like(saved.query), torch.zeros_like(saved.value)
    alone = saved.denominator.view(-1).isposinf().nonzero().view(-1)
    grad_value.index_copy_(0, alone, saved.grad_out[alone])
    for hashing in rounds:
        for block in layout.blocks():
            rows = hashing.window_rows(block)
            grad_queries, grad_values = _differentiate_in(hashing, block, saved)
            grad_query.index_add_(0, rows, grad_queries)
            grad_value.index_add_(0, rows, grad_values)
    return grad_query, grad_value


def _differentiate_in(hashing: Round, block: slice, saved: Saved) -> tuple[Tensor, Tensor]:
    """What a block adds to the gradients of its window rows, ((chunks + 1) c, X) each."""
    chunk, rows = hashing.layout.chunk, hashing.window_rows(block)
    queries = saved.query.index_select(0, rows)
    norm = norms_of(queries)
    keys = queries / norm
    q, k = _by_chunk(queries, chunk)[1:], windows(keys, chunk)  # (chunks, c, D), (chunks, D, 2 c)
    v = windows(saved.value.index_select(0, rows), chunk)  # (chunks, M, 2 c)
    grad_out, out, denominator = (
        _by_chunk(x.index_select(0, rows[chunk:]), chunk)
        for x in (saved.grad_out, saved.out, saved.denominator)
    )
    scores = torch.bmm(q, k)  # (chunks, c, 2 c)
    hashing.hide(scores, block)
    weights = scores.sub_(denominator).exp_()
    grad_scores = torch.bmm(grad_out, v).sub_((grad_out * out).sum(-1, keepdim=True)).mul_(weights)
    grad_keys = _sum_windows(torch.bmm(grad_scores.transpose(1, 2), q))
    # The derivative of k = q / |q| keeps only the part of the gradient that is orthogonal to k.
    along = (grad_keys * keys).sum(-1, keepdim=True)
    grad_queries = grad_keys.addcmul_(keys, along, value=-1).div_(norm)
    grad_queries[chunk:] += torch.bmm(grad_scores, k.transpose(1, 2)).flatten(0, 1)
    return grad_queries, _sum_windows(torch.bmm(weights.transpose(1, 2), grad_out))


def _by_chunk(rows: Tensor, chunk: int) -> Tensor:
    return rows.view(-1, chunk, rows.shape[1])


def _sum_windows(gradients: Tensor) -> Tensor:
    """Adds the gradients of overlapping windows: (chunks, 2 c, X) -> ((chunks + 1) c, X)."""
    chunks, both, width = gradients.shape
    total = gradients.new_zeros(chunks + 1, both // 2, width)
    total[1:] = gradients[:, both // 2 :]
    total[:-1] += gradients[:, : both // 2]
    return total.flatten(0, 1)
