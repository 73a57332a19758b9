"""LSH attention backward: every round's weights are computed again from the denominators."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from linattn_models.attention.lsh.windows import Layout, Round, norms_of, windows


@dataclass(frozen=True)
class Known:
    """What the forward pass and the layer above leave.

    Attributes:
        query: (G P, D).
        value, out, grad_out: (G P, M).
        denominator: (G P, 1) as `attend` returned it.
    """

    query: Tensor
    value: Tensor
    out: Tensor
    denominator: Tensor
    grad_out: Tensor


def differentiate(layout: Layout, rounds: list[Round], known: Known) -> tuple[Tensor, Tensor]:
    """The gradients of queries (G P, D) and values (G P, M).

    The rounds share no key of a query, so that with the weights p of the whole softmax

        ds_ij = p_ij (dout_i . v_j - dout_i . out_i),    dq_i += ds_ij k_j,    dk_j += ds_ij q_i

    can be summed over them. Which bucket a query falls into has no gradient. Where a query sees
    nothing but itself, whose value it is, all weights are 0, for the denominator is infinite.
    """
    grad_query, grad_value = torch.zeros_like(known.query), torch.zeros_like(known.value)
    alone = known.denominator.view(-1).isposinf().nonzero().view(-1)
    grad_value.index_copy_(0, alone, known.grad_out[alone])
    for found in rounds:
        for block in layout.blocks():
            rows = found.window_rows(block)
            of_query, of_value = _differentiate_in(found, block, known)
            grad_query.index_add_(0, rows, of_query)
            grad_value.index_add_(0, rows, of_value)
    return grad_query, grad_value


def _differentiate_in(found: Round, block: slice, known: Known) -> tuple[Tensor, Tensor]:
    """What a block's queries give to the gradients of its window rows, ((chunks + 1) c, X) each."""
    chunk, rows = found.layout.chunk, found.window_rows(block)
    queries = known.query.index_select(0, rows)
    norm = norms_of(queries)
    keys = queries / norm
    q, k = _by_chunk(queries, chunk)[1:], windows(keys, chunk)  # (chunks, c, D), (chunks, D, 2 c)
    v = windows(known.value.index_select(0, rows), chunk)  # (chunks, M, 2 c)
    upstream, out, denominator = (
        _by_chunk(x.index_select(0, rows[chunk:]), chunk)
        for x in (known.grad_out, known.out, known.denominator)
    )
    scores = torch.bmm(q, k)  # (chunks, c, 2 c)
    found.hide(scores, block)
    weights = scores.sub_(denominator).exp_()
    of_scores = torch.bmm(upstream, v).sub_((upstream * out).sum(-1, keepdim=True)).mul_(weights)
    of_keys = _summed_windows(torch.bmm(of_scores.transpose(1, 2), q))
    # Through k = q / |q|: only what is at a right angle to k turns it.
    along = (of_keys * keys).sum(-1, keepdim=True)
    of_queries = of_keys.addcmul_(keys, along, value=-1).div_(norm)
    of_queries[chunk:] += torch.bmm(of_scores, k.transpose(1, 2)).flatten(0, 1)
    return of_queries, _summed_windows(torch.bmm(weights.transpose(1, 2), upstream))


def _by_chunk(rows: Tensor, chunk: int) -> Tensor:
    return rows.view(-1, chunk, rows.shape[1])


def _summed_windows(gradients: Tensor) -> Tensor:
    """Gradients of windows (chunks, 2 c, X) as those of their rows ((chunks + 1) c, X)."""
    chunks, both, width = gradients.shape
    total = gradients.new_zeros(chunks + 1, both // 2, width)
    total[1:] = gradients[:, both // 2 :]
    total[:-1] += gradients[:, : both // 2]
    return total.flatten(0, 1)
