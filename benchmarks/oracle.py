"""The float64 oracle at full length, for a sample of query rows and their gradients.

A benchmark's check is made at the sizes that it times. Sixteen rows of the N x N matrix and their
gradients cost O(16 N D), and the gradients still reach every key and value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS = 16
HEADS = 8
EPS = 1e-6
# Largest error over largest magnitude. They catch wrong results, not the loss of a digit:
# tests/contract holds every backend to the budgets of the project.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}


def sample_rows(length: int) -> Tensor:
    """Returns up to ROWS positions spread over the sequence, the first and the last among them."""
    return torch.linspace(0, length - 1, min(ROWS, length)).round().long()


def sample_heads(batch: int, heads: int, most: int = HEADS) -> tuple[Tensor, Tensor]:
    """Returns the batch and head indices of up to `most` heads, the first and the last among them.

    A GPU is timed with thousands of them, too many for the oracle to compute.
    """
    total = batch * heads
    chosen = torch.linspace(0, total - 1, min(most, total)).round().long()
    return chosen // heads, chosen % heads


def linear_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: Tensor,
    is_causal: bool = True,
    bare: bool = False,
) -> Tensor:
    """Rows of linear attention with phi = elu + 1 (the paper's equations 8 and 9, or 4 and 5).

    Args:
        query, key: (B, H, N, D) float64. value: (B, H, N, M) float64.
        rows: (R,) positions.
        is_causal: row i sees the keys up to i, not all of them.
        bare: without phi and the division by the normalizer.

    Returns:
        (B, H, R, M).
    """
    phi_q, phi_k = (x if bare else F.elu(x) + 1 for x in (query[:, :, rows], key))
    scores = phi_q @ phi_k.mT
    if is_causal:
        scores = scores.masked_fill(_later(scores, rows), 0)
    out = scores @ value
    return out if bare else out / (scores.sum(-1, keepdim=True) + EPS)


def softmax_rows(
    query: Tensor, key: Tensor, value: Tensor, rows: Tensor, is_causal: bool = True
) -> Tensor:
    """Rows of softmax attention (the paper's equation 2); as `linear_rows`."""
    scores = query[:, :, rows] @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        scores = scores.masked_fill(_later(scores, rows), -torch.inf)
    return F.softmax(scores, dim=-1) @ value


def output_and_gradients(
    call: Callable[..., Tensor], tensors: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """Returns the call's output and the gradients of the tensors that want one.

    The upstream gradient is random, the same for outputs of one shape.
    """
    out = call(*tensors)
    if not out.requires_grad:
        return (out,)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return (out.detach(), *torch.autograd.grad(out, tensors, upstream.to(out)))


def find_disagreement(
    name: str, actual: Tensor, exact: Tensor, tolerance: float | None = None, stray: float = 0.0
) -> str | None:
    """Returns the sentence that says how a tensor differs from the oracle's, or None.

    Args:
        tolerance: largest error over largest magnitude; that of the tensor's dtype by default.
        stray: the share of rows that may differ, because rounding decides which keys they see.
    """
    if actual.shape != exact.shape:
        return f"{name} has shape {tuple(actual.shape)}, the float64 oracle's {tuple(exact.shape)}"
    allowed = TOLERANCE[actual.dtype] if tolerance is None else tolerance
    error = (actual.double() - exact).abs().amax(-1) / exact.abs().max()
    share = float((~(error <= allowed)).double().mean())  # a NaN must not pass
    if share <= stray:
        return None
    return (
        f"{share:.2%} of the rows of {name} differ from the float64 oracle, the farthest by "
        f"{error.max():.1e}; allowed are {allowed:.0e} and {stray:.1%}"
    )


def find_first_disagreement(
    inputs: Sequence[str], actual: Sequence[Tensor], exact: Sequence[Tensor], stray: float = 0.0
) -> str | None:
    """The first `find_disagreement` of two results of `output_and_gradients`, or None."""
    if len(actual) != len(exact):
        return f"{len(actual) - 1} gradients came, and {len(exact) - 1} from the float64 oracle"
    names = ("the output", *(f"the {name} gradient" for name in inputs))
    compared = zip(names, actual, exact, strict=False)  # without a backward pass, the output alone
    faults = (find_disagreement(*each, stray=stray) for each in compared)
    return next((fault for fault in faults if fault is not None), None)


def _later(scores: Tensor, rows: Tensor) -> Tensor:
    """True (R, N) for the keys after each row's own position."""
    positions = torch.arange(scores.shape[-1], device=scores.device)
    return positions > rows.to(scores.device)[:, None]
