"""The float64 oracle at full length, for a sample of query rows and the gradients through them.

A benchmark's check must hold for the very sizes that it times. Sixteen rows of the N x N matrix
and their gradients cost O(16 N D), and the gradients still reach every key and value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Rows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

ROWS = 16
HEADS = 8
EPS = 1e-6
# Largest error over largest magnitude. They guard against a wrong result, not for the last digits:
# tests/contract holds every backend to the budgets of the project.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}


def sampled_rows(length: int) -> torch.Tensor:
    """Returns up to ROWS positions spread over the sequence, the first and the last among them."""
    return torch.linspace(0, length - 1, min(ROWS, length)).round().long()


def sampled_heads(batch: int, heads: int, most: int = HEADS) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the batch and head indices of up to `most` heads, the first and the last among them.

    A GPU is timed with thousands of them, too many for the oracle to compute.
    """
    total = batch * heads
    chosen = torch.linspace(0, total - 1, min(most, total)).round().long()
    return chosen // heads, chosen % heads


def linear_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: torch.Tensor,
    is_causal: bool = True,
) -> torch.Tensor:
    """Rows of linear attention with phi = elu + 1 (the paper's equations 8 and 9, or 4 and 5).

    Args:
        query, key: (B, H, N, D) float64. value: (B, H, N, M) float64.
        rows: (R,) positions.
        is_causal: row i sees the keys up to i, not all of them.

    Returns:
        (B, H, R, M).
    """
    scores = _elu_plus_one(query[:, :, rows]) @ _elu_plus_one(key).mT
    if is_causal:
        scores = _causal(scores, rows, 0.0)
    return scores @ value / (scores.sum(-1, keepdim=True) + EPS)


def softmax_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    rows: torch.Tensor,
    is_causal: bool = True,
) -> torch.Tensor:
    """Rows of softmax attention (the paper's equation 2); as `linear_rows`."""
    scores = query[:, :, rows] @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        scores = _causal(scores, rows, -torch.inf)
    return F.softmax(scores, dim=-1) @ value


def output_and_gradients(
    call: Callable[..., torch.Tensor], tensors: list[torch.Tensor], backward: bool
) -> tuple[torch.Tensor, ...]:
    """Returns the call's output and, with `backward`, the gradients of all that it takes.

    The upstream gradient is random, the same for outputs of one shape.
    """
    out = call(*tensors)
    if not backward:
        return (out,)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    return (out.detach(), *torch.autograd.grad(out, tensors, upstream.to(out)))


def disagreement(
    actual: tuple[torch.Tensor, ...],
    expected: tuple[torch.Tensor, ...],
    names: tuple[str, ...],
    tolerance: float | None = None,
) -> str | None:
    """Returns the sentence that names the first tensor beyond its tolerance, or None.

    Args:
        tolerance: largest error over largest magnitude; that of each tensor's dtype by default.
    """
    for name, ours, exact in zip(names, actual, expected, strict=True):
        error = float((ours.double() - exact).abs().max() / exact.abs().max())
        allowed = TOLERANCE[ours.dtype] if tolerance is None else tolerance
        if not error <= allowed:  # a NaN must not pass
            return f"{name} differs from the float64 oracle by {error:.1e}, allowed {allowed:.0e}"
    return None


def stray_rows(
    actual: tuple[torch.Tensor, ...],
    expected: tuple[torch.Tensor, ...],
    names: tuple[str, ...],
    allowed: float,
) -> str | None:
    """Returns the sentence that names the first tensor with too many rows beyond its tolerance.

    Args:
        allowed: the share of a tensor's rows that may be, where rounding decides what they see.
    """
    for name, ours, exact in zip(names, actual, expected, strict=True):
        error = (ours.double() - exact).abs().amax(-1) / exact.abs().max()
        stray = float((~(error <= TOLERANCE[ours.dtype])).double().mean())  # NaN strays
        if stray > allowed:
            return (
                f"{stray:.2%} of the rows of {name} differ from the float64 oracle by more than "
                f"{TOLERANCE[ours.dtype]:.0e}, allowed {allowed:.1%}"
            )
    return None


def _elu_plus_one(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _causal(scores: torch.Tensor, rows: torch.Tensor, masked: float) -> torch.Tensor:
    """Scores (B, H, R, N) with the keys after each row's own position set to `masked`."""
    rows = rows.to(scores.device)
    later = torch.arange(scores.shape[-1], device=rows.device) > rows[:, None]  # (R, N)
    return scores.masked_fill(later, masked)
