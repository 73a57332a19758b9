"""Causal linear attention in torch operations, in linear time and scratch memory of fixed size.

Inside a chunk of C positions the weights are a lower-triangular C x C matrix; earlier positions are
read from S and z, the running sums over the chunks before (equations 10 to 12). The backward pass
follows the paper's equations 13 to 15 and includes the gradient of the normalizer. With G_i the
upstream gradient of the output and

    n_i = phi(q_i) . z_i + eps,   g_i = G_i / n_i,   h_i = -g_i . V'_i

the gradients are

    d phi(q_i) = S_i g_i + h_i z_i                              (S, z: running sums, forwards)
    d phi(k_j) = R_j v_j + r_j,   d v_j = R_j^T phi(k_j)        (R, r: running sums, backwards)
    R_j = sum_{i >= j} phi(q_i) g_i^T,   r_j = sum_{i >= j} h_i phi(q_i)

No tensor of size N x F x M is made: S is computed again and not saved. With `log_decay`, S, z, R
and r decay in the direction in which they run.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.calls import Gradients, Output
from linattn_core.reference_backend.decay import DecayGradient, decay_of
from linattn_core.reference_backend.running_sums import RunningSums
from linattn_core.reference_backend.tiles import (
    Problem,
    Upstream,
    load,
    load_normalizer_gradient,
    load_output_gradient,
    store,
    write_output,
)
from linattn_core.reference_backend.workspace import Segment, Workspace


def _lower_triangle(
    work: Workspace, name: str, left: Tensor, right: Tensor, shift: Tensor | None = None
) -> Tensor:
    """The products left_i . right_j + shift_i of a chunk for j <= i, else 0: (..., G * C, C)."""
    rows, size, keys = *left.shape[:2], right.shape[1]
    products = torch.bmm(left, right.mT, out=work(name, rows, size, keys))
    if shift is not None:
        products.add_(shift)
    if size == keys:
        return products.tril_()
    products.unflatten(1, (-1, keys)).tril_()
    return products


def forward(
    problem: Problem, sums: RunningSums, parts: list[Segment], work: Workspace, into: Output
) -> None:
    """Writes out (B, H, N, M) and normalizer (B, H, N); `sums` ends as the final state."""
    for part in parts:
        q, k, v = (x(work, part) for x in (problem.queries, problem.keys, problem.values))
        decay = decay_of(problem, work, part)
        weights = decay.within(_lower_triangle(work, "weights", q, k))
        numerator = torch.bmm(weights, v, out=work("o", *q.shape[:2], v.shape[2]))
        total = weights.sum(-1, keepdim=True)  # (chunks * B * H, C, 1)
        before = sums.pass_over(decay.to_end(k), v, None, part, decay.across)
        if before is not None:
            q = decay.from_start(q)
            numerator.baddbmm_(q, before.s)
            seen = torch.mul(q, before.z[:, None], out=work("scratch", *q.shape))
            total.add_(seen.sum(-1, keepdim=True))
        total.add_(problem.call.eps)
        write_output(numerator, total, into, part, normalize=problem.call.normalize)


def query_gradient(
    problem: Problem,
    output: Output,
    upstream: Upstream,
    sums: RunningSums,
    parts: list[Segment],
    work: Workspace,
    into: Gradients,
    grad_normalizer: Tensor,
    grad_decay: DecayGradient | None,
) -> None:
    """Equation 13, forwards in time: writes the gradient of query, and h, that of the normalizer.

    `h` goes to `grad_normalizer`, (B, H, N), which `key_value_gradient` reads.
    """
    for part in parts:
        g = load_output_gradient(work, output, upstream, part)
        h = load_normalizer_gradient(work, g, output, upstream, part)
        store(h, grad_normalizer[..., None], part)
        if into.query is None and grad_decay is None:
            continue  # only h is needed, for the second pass
        q, k, v = (x(work, part) for x in (problem.queries, problem.keys, problem.values))
        decay = decay_of(problem, work, part)
        grad_weights = decay.within(_lower_triangle(work, "weights", g, v, shift=h))
        gradient = torch.bmm(grad_weights, k, out=work("dq", *q.shape))
        before = sums.pass_over(decay.to_end(k), v, None, part, decay.across)
        if before is not None:
            g, h = decay.from_start(g), decay.from_start(h)
            gradient.baddbmm_(g, before.s.mT).addcmul_(h, before.z[:, None])
            if grad_decay is not None:
                grad_decay.reads(part, q, g, h, before)
        store(problem.derive(gradient, q), into.query, part)


def key_value_gradient(
    problem: Problem,
    output: Output,
    upstream: Upstream,
    grad_normalizer: Tensor,
    sums: RunningSums,
    parts: list[Segment],
    work: Workspace,
    into: Gradients,
    grad_decay: DecayGradient | None,
) -> None:
    """Equations 14 and 15, backwards in time: writes the gradients of key and value.

    `sums` starts as the gradient of the final state and ends as that of the initial state.
    """
    for part in reversed(parts):
        q, k, v = (x(work, part) for x in (problem.queries, problem.keys, problem.values))
        decay = decay_of(problem, work, part)
        g = load_output_gradient(work, output, upstream, part)
        h = load(work, "h", grad_normalizer[..., None], part)
        weights = decay.within(_lower_triangle(work, "weights", q, k))
        grad_weights = _lower_triangle(work, "grad weights", g, v, shift=h)
        if grad_decay is not None:
            grad_decay.inside(part, weights, grad_weights)
        dk = torch.bmm(decay.within(grad_weights).mT, q, out=work("dk", *k.shape))
        dv = torch.bmm(weights.mT, g, out=work("o", *v.shape))
        after = sums.pass_over(decay.from_start(q), g, h, part, decay.across)
        if after is not None:
            k_end = decay.to_end(k)
            dk.baddbmm_(decay.to_end(v), after.s.mT).add_(decay.to_end(after.z[:, None]))
            dv.baddbmm_(k_end, after.s)
            if grad_decay is not None and decay.across is not None:
                grad_decay.writes(part, k_end, v, after, decay.across)
        dk = problem.derive(dk, k)
        store(problem.erase(dk, part), into.key, part)
        store(problem.erase(dv, part), into.value, part)
