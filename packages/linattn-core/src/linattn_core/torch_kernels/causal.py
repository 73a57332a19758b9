"""Causal linear attention in torch operations: linear time, scratch memory that does not grow.

Inside a chunk of C positions the weights are a lower-triangular C x C matrix; what came before it
is read from S and z, which run from chunk to chunk (equations 9 and 10). The backward pass follows
the paper's equations 13 to 15, with the normalizer's part folded in: with

    n_i = phi(q_i) . z_i + eps,   g_i = G_i / n_i,   h_i = -g_i . V'_i

the gradients are

    d phi(q_i) = S_i g_i + h_i z_i                              (S, z: running sums, forwards)
    d phi(k_j) = R_j v_j + r_j,   d v_j = R_j^T phi(k_j)        (R, r: running sums, backwards)
    R_j = sum_{i >= j} phi(q_i) g_i^T,   r_j = sum_{i >= j} h_i phi(q_i)

so that nothing of size N x F x M ever exists: S is recomputed, not saved.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.calls import Gradients, Output
from linattn_core.torch_kernels.running_sums import RunningSums
from linattn_core.torch_kernels.tiles import (
    Problem,
    load,
    load_normalizer_gradient,
    load_output_gradient,
    store,
    write_output,
)
from linattn_core.torch_kernels.workspace import Segment, Workspace


def _lower_triangle(
    work: Workspace, name: str, left: Tensor, right: Tensor, shift: Tensor | None = None
) -> Tensor:
    """The products left_i . right_j + shift_i of a chunk for j <= i, else 0: (..., C, C)."""
    rows, size = left.shape[:2]
    products = torch.bmm(left, right.mT, out=work(name, rows, size, size))
    if shift is not None:
        products.add_(shift)
    return products.tril_()


def forward(
    problem: Problem, sums: RunningSums, parts: list[Segment], work: Workspace, into: Output
) -> None:
    """Fills out (B, H, N, M) and normalizer (B, H, N); `sums` ends as the state after the last."""
    for part in parts:
        q, k, v = (x(work, part) for x in (problem.queries, problem.keys, problem.values))
        weights = _lower_triangle(work, "weights", q, k)
        numerator = torch.bmm(weights, v, out=work("o", *v.shape))
        total = weights.sum(-1, keepdim=True)  # (chunks * B * H, C, 1)
        before = sums.pass_over(k, v, None, part)
        if before is not None:
            numerator.baddbmm_(q, before.s)
            seen = torch.mul(q, before.z[:, None], out=work("scratch", *q.shape))
            total.add_(seen.sum(-1, keepdim=True))
        write_output(numerator, total.add_(problem.call.eps), into, part)


def query_gradient(
    problem: Problem,
    output: Output,
    grad_out: Tensor,
    sums: RunningSums,
    parts: list[Segment],
    work: Workspace,
    grad_query: Tensor,
    grad_normalizer: Tensor,
) -> None:
    """Equation 13, forwards in time: fills `grad_query` and h, the gradient of the normalizer."""
    for part in parts:
        q, k, v = (x(work, part) for x in (problem.queries, problem.keys, problem.values))
        g = load_output_gradient(work, grad_out, output.normalizer, part)
        h = load_normalizer_gradient(work, g, output.out, part)
        grad_weights = _lower_triangle(work, "weights", g, v, shift=h)
        gradient = torch.bmm(grad_weights, k, out=work("dq", *q.shape))
        before = sums.pass_over(k, v, None, part)
        if before is not None:
            gradient.baddbmm_(g, before.s.mT).addcmul_(h, before.z[:, None])
        store(problem.derive(gradient, q), grad_query, part)
        store(h, grad_normalizer[..., None], part)


def key_value_gradient(
    problem: Problem,
    normalizer: Tensor,
    grad_out: Tensor,
    grad_normalizer: Tensor,
    sums: RunningSums,
    parts: list[Segment],
    work: Workspace,
    into: Gradients,
) -> None:
    """Equations 14 and 15, backwards in time: fills the gradients of key and value.

    `sums` begins as the gradient of the last state and ends as that of the first.
    """
    for part in reversed(parts):
        q, k, v = (x(work, part) for x in (problem.queries, problem.keys, problem.values))
        g = load_output_gradient(work, grad_out, normalizer, part)
        h = load(work, "h", grad_normalizer[..., None], part)
        weights = _lower_triangle(work, "weights", q, k)
        grad_weights = _lower_triangle(work, "grad weights", g, v, shift=h)
        dk = torch.bmm(grad_weights.mT, q, out=work("dk", *k.shape))
        dv = torch.bmm(weights.mT, g, out=work("o", *v.shape))
        after = sums.pass_over(q, g, h, part)
        if after is not None:
            dk.baddbmm_(v, after.s.mT).add_(after.z[:, None])
            dv.baddbmm_(k, after.s)
        dk = problem.derive(dk, k)
        store(problem.erase(dk, part), into.key, part)
        store(problem.erase(dv, part), into.value, part)
