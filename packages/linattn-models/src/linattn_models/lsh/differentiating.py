"""LSH attention backward: every round's weights are computed again from the denominators."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_models.lsh.windows import Layout, Round, behind_one_chunk, keys_of, windows


def differentiate(
    layout: Layout,
    rounds: list[Round],
    query: Tensor,
    value: Tensor,
    grad_out: Tensor,
    out: Tensor,
    denominator: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients of queries and values.

    The rounds share no key of a query, so that with the weights p of the whole softmax

        ds_ij = p_ij (dout_i . v_j - dout_i . out_i),    dq_i += ds_ij k_j,    dk_j += ds_ij q_i

    can be summed over them. Which bucket a query falls into has no gradient.

    Args:
        query, value, grad_out, out: (G P, D) and (G P, M).
        denominator: (G P,) as `attend` returned it.

    Returns:
        (G P, D) and (G P, M).
    """
    average = (grad_out * out).sum(1)  # dout . out
    grad_query, grad_value = torch.zeros_like(query), torch.zeros_like(value)
    for found in rounds:
        of_query, of_value = _differentiate_once(
            layout, found, query, value, grad_out, average, denominator
        )
        grad_query += of_query.index_select(0, found.places)
        grad_value += of_value.index_select(0, found.places)
    return grad_query, grad_value


def _differentiate_once(
    layout: Layout,
    found: Round,
    query: Tensor,
    value: Tensor,
    grad_out: Tensor,
    average: Tensor,
    denominator: Tensor,
) -> tuple[Tensor, Tensor]:
    """One round's share of the gradients, in the round's order."""
    chunk, rows = layout.chunk, found.rows

    def ordered(x: Tensor) -> Tensor:
        return x.index_select(0, rows).view(layout.chunks, chunk, -1)

    q, upstream = ordered(query), ordered(grad_out)
    average, denominator = ordered(average), ordered(denominator)  # (C, c, 1)
    keys, norm = keys_of(q)
    k = windows(behind_one_chunk(keys.flatten(0, 1), chunk), chunk)  # (C, D, 2 c)
    v = windows(behind_one_chunk(value.index_select(0, rows), chunk), chunk)  # (C, M, 2 c)
    grad_q = torch.empty_like(q)
    grad_k = q.new_zeros(layout.chunks + 1, chunk, q.shape[2])  # the first for what is not there
    grad_v = q.new_zeros(layout.chunks + 1, chunk, value.shape[1])
    for block in layout.blocks():
        scores = torch.bmm(q[block], k[block])  # (chunks, c, 2 c)
        found.hide(scores, block)
        weights = scores.sub_(denominator[block]).exp_()
        _add_windows(grad_v, block, torch.bmm(weights.transpose(1, 2), upstream[block]))
        of_scores = torch.bmm(upstream[block], v[block])
        of_scores.sub_(average[block]).mul_(weights)
        torch.bmm(of_scores, k[block].transpose(1, 2), out=grad_q[block])
        _add_windows(grad_k, block, torch.bmm(of_scores.transpose(1, 2), q[block]))
    # Through k = q / |q|: only what is at a right angle to k turns it.
    of_keys = grad_k[1:]
    along = (of_keys * keys).sum(-1, keepdim=True)
    grad_q += of_keys.addcmul_(keys, along, value=-1).div_(norm)
    return grad_q.flatten(0, 1), grad_v[1:].flatten(0, 1)


def _add_windows(total: Tensor, block: slice, gradients: Tensor) -> None:
    """Adds gradients of windows (chunks, 2 c, X) to those of chunks, of which `total` has one more
    at its front."""
    chunk = total.shape[1]
    total[block] += gradients[:, :chunk]
    total[block.start + 1 : block.stop + 1] += gradients[:, chunk:]
