"""Non-causal linear attention in torch operations: one pass over the keys, one over the queries.

With G_i the upstream gradient of the output V'_i, n_i = phi(q_i) . z + eps, g_i = G_i / n_i and
h_i = -g_i . V'_i, the gradients are

    d phi(q_i) = S g_i + h_i z,   d phi(k_j) = R v_j + r,   d v_j = R^T phi(k_j)
    R = sum_i phi(q_i) g_i^T,     r = sum_i h_i phi(q_i)

R and r are also the gradients of an initial state's s and z.
"""

from __future__ import annotations

import torch

from linattn_core.calls import Gradients, Output
from linattn_core.reference_backend.tiles import (
    Problem,
    Upstream,
    load_normalizer_gradient,
    load_output_gradient,
    store,
    write_output,
)
from linattn_core.reference_backend.workspace import Segment, Workspace
from linattn_core.state import LinearAttentionState


def sum_keys(
    problem: Problem, sums: LinearAttentionState, parts: list[Segment], work: Workspace
) -> None:
    """Adds phi(k_j) v_j^T and phi(k_j) of every key to `sums`, s (B * H, F, M), z (B * H, F)."""
    for part in parts:
        k, v = problem.keys(work, part), problem.values(work, part)
        sums.s.baddbmm_(k.mT, v)
        sums.z.add_(k.sum(1))


def read(
    problem: Problem,
    sums: LinearAttentionState,
    parts: list[Segment],
    work: Workspace,
    into: Output,
) -> None:
    """Writes out (B, H, N, M) and normalizer (B, H, N), read from the sums."""
    for part in parts:
        q = problem.queries(work, part)
        numerator = torch.bmm(q, sums.s, out=work("o", *q.shape[:2], sums.s.shape[2]))
        seen = torch.mul(q, sums.z[:, None], out=work("scratch", *q.shape))
        total = seen.sum(-1, keepdim=True).add_(problem.call.eps)
        write_output(numerator, total, into, part, normalize=problem.call.normalize)


def query_gradient(
    problem: Problem,
    output: Output,
    upstream: Upstream,
    sums: LinearAttentionState,
    grad_sums: LinearAttentionState | None,
    parts: list[Segment],
    work: Workspace,
    into: Gradients,
) -> None:
    """Writes the gradient of query and adds R and r to `grad_sums`; skips what is None."""
    for part in parts:
        q = problem.queries(work, part)
        g = load_output_gradient(work, output, upstream, part)
        h = load_normalizer_gradient(work, g, output, upstream, part)
        if grad_sums is not None:
            grad_sums.s.baddbmm_(q.mT, g)
            grad_sums.z.add_(torch.mul(q, h, out=work("scratch", *q.shape)).sum(1))
        if into.query is not None:
            dq = torch.bmm(g, sums.s.mT, out=work("dq", *q.shape)).addcmul_(h, sums.z[:, None])
            store(problem.derive(dq, q), into.query, part)


def key_value_gradient(
    problem: Problem,
    grad_sums: LinearAttentionState,
    parts: list[Segment],
    work: Workspace,
    into: Gradients,
) -> None:
    """Writes the wanted gradients of key and value, from R and r."""
    for part in parts:
        k = problem.keys(work, part)
        if into.value is not None:
            dv = torch.bmm(k, grad_sums.s, out=work("o", *k.shape[:2], grad_sums.s.shape[2]))
            store(problem.erase(dv, part), into.value, part)
        if into.key is not None:
            v = problem.values(work, part)
            dk = torch.bmm(v, grad_sums.s.mT, out=work("dk", *k.shape)).add_(grad_sums.z[:, None])
            store(problem.erase(problem.derive(dk, k), part), into.key, part)
