"""The terms that results are sums of, all taken as positive: what rounding is relative to.

A sum of terms t_j, rounded with relative errors of at most u, is off by a few u sum_j |t_j|,
however small the sum itself is. Gradients of the normalized output nearly cancel: scaling a query
changes the output by eps alone. With the output V' = A / n, the terms of a gradient are those of

    d phi(q_i) = S_i g_i + h_i z_i,   g_i = G_i / n_i,   h_i = -g_i . V'_i

and of equations 14 and 15 likewise. A backend reads V' as the forward pass has rounded and saved
it, to the dtype of the output, so the part of each gradient that comes through h is off by that
dtype's rounding, and the rest by that of the sums.

Both parts are gradients of a loss whose terms all have one sign: features, values, states and
upstream gradients by their absolute values, and 1 / n replaced by a line in n that rises as fast as
1 / n falls. Where features have two signs, n itself is a sum that cancels, and 1 / n is off by
more, in proportion.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core import LinearAttentionState, get_feature_map, reference

from .cases import upstream

Results = dict[str, Tensor]


class Terms(NamedTuple):
    """The sums of the absolute terms of each result, in float64, by name.

    Attributes:
        sums: of all terms, which are rounded as the sums are.
        saved: of those that come through the saved output, which is rounded as the output is.
    """

    sums: Results
    saved: Results


def terms(
    tensors: Results, options: dict[str, Any], arriving: Callable[[Results], Results] = upstream
) -> Terms:
    """Those of output, state, normalizer and gradients of a call.

    Args:
        tensors: query, key, value and, where there are, s, z and log_decay.
        options: the other arguments of `linear_attention`; causal where they do not say.
        arriving: the upstream gradients of results, by name, which it gets with positive terms.
    """
    exact = {name: x.detach().double() for name, x in tensors.items()}
    mapping = get_feature_map(options.get("feature_map", "elu"), exact["query"].shape[-1])
    maps = {"query": mapping.queries, "key": mapping.keys}
    with torch.no_grad():
        features = exact | {name: phi(exact[name]) for name, phi in maps.items()}
        signed = _bare_sums(features, options)
    leaves = {n: x if n == "log_decay" else x.abs() for n, x in features.items()}
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    sums = _bare_sums(leaves, options)
    upstreams = {name: x.abs() for name, x in arriving(sums).items()}
    losses, output = _losses(sums, signed, options, upstreams)
    by_loss = []
    for loss in losses:
        gradients = torch.autograd.grad(
            loss, list(leaves.values()), retain_graph=True, materialize_grads=True
        )
        by_name = dict(zip(leaves, gradients, strict=True))
        by_name |= {name: _through(phi, exact[name], by_name[name]) for name, phi in maps.items()}
        by_loss.append({f"grad_{name}": x for name, x in by_name.items()})
    return Terms({**sums, "out": output, **by_loss[0]}, by_loss[1])


def _bare_sums(features: Results, options: dict[str, Any]) -> Results:
    """Numerator ("out"), normalizer without eps, and the state, of features."""
    changed = {
        "feature_map": "identity", "normalize": False, "return_normalizer": True,
        "return_state": True, "log_decay": features.get("log_decay"),
    }  # fmt: skip
    state = LinearAttentionState(features["s"], features["z"]) if "s" in features else None
    inputs = (features[name] for name in ("query", "key", "value"))
    settings = {"is_causal": True, **options, **changed}
    out, normalizer, (s, z) = reference.quadratic(*inputs, initial_state=state, **settings)
    return {"out": out, "s": s, "z": z, "normalizer": normalizer}


def _losses(
    sums: Results, signed: Results, options: dict[str, Any], arriving: Results
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """The losses whose gradients are the terms, all and the saved ones; the terms of the output."""
    if not options.get("return_normalizer", False):
        arriving = {name: x for name, x in arriving.items() if name != "normalizer"}
    loss = sum((x * sums[name]).sum() for name, x in arriving.items() if name != "out")
    out, grad_out = sums["out"], arriving["out"]
    if not options.get("normalize", True):
        return (loss + (grad_out * out).sum(), loss * 0), out.detach()
    eps = options.get("eps", 1e-6)
    n, positive = signed["normalizer"] + eps, sums["normalizer"]
    inverse = ((positive.detach() + eps) / n**2)[..., None]  # 1 / n, and what n loses if it cancels
    g = grad_out * inverse
    falling, falling_saved = (
        (g * x.abs()).sum(-1) / n.abs() for x in (out.detach(), signed["out"])
    )
    loss = loss + (g * out).sum() + (falling * positive).sum()
    return (loss, (falling_saved * positive).sum()), out.detach() * inverse


def _through(phi: Callable[[Tensor], Tensor], x: Tensor, terms: Tensor) -> Tensor:
    """The terms of the gradient by x from those by phi(x): |Jacobian|^T terms, a feature a time."""
    x = x.detach().requires_grad_()
    columns = phi(x).unbind(-1)
    total = torch.zeros_like(x)
    for column, term in zip(columns, terms.unbind(-1), strict=True):
        (slope,) = torch.autograd.grad(column.sum(), x, retain_graph=True)
        total += slope.abs() * term[..., None]
    return total
