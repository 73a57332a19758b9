"""The float64 truth at full length, for a sample of query rows and the gradients through them.

A benchmark's check must hold for the very sizes that it times. Sixteen rows of the N x N matrix
and their gradients cost O(16 N D), and the gradients still reach every key and value.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

Rows = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

ROWS = 16
EPS = 1e-6
# Largest error over largest magnitude. They guard against a wrong result, not for the last digits:
# tests/contract holds every backend to the budgets of the project.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3, torch.bfloat16: 3e-2, torch.float16: 1e-2}


def sampled_rows(length: int) -> torch.Tensor:
    """Returns up to ROWS positions spread over the sequence, the first and the last among them."""
    return torch.linspace(0, length - 1, min(ROWS, length)).round().long()


def linear_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Rows of causal linear attention with phi = elu + 1 (the paper's equations 8 and 9).

    Args:
        query, key: (B, H, N, D) float64. value: (B, H, N, M) float64.
        rows: (R,) positions.

    Returns:
        (B, H, R, M).
    """
    scores = _causal(_elu_plus_one(query[:, :, rows]) @ _elu_plus_one(key).mT, rows, 0.0)
    return scores @ value / (scores.sum(-1, keepdim=True) + EPS)


def product_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """The same with neither feature map nor normaliser: what the peer's bare kernel computes."""
    return _causal(query[:, :, rows] @ key.mT, rows, 0.0) @ value


def softmax_rows(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    """Rows of causal softmax attention (the paper's equation 2)."""
    scores = query[:, :, rows] @ key.mT / query.shape[-1] ** 0.5
    return F.softmax(_causal(scores, rows, -torch.inf), dim=-1) @ value


def disagreement(
    actual: tuple[torch.Tensor, ...], expected: tuple[torch.Tensor, ...], names: tuple[str, ...]
) -> str | None:
    """Returns the sentence that names the first tensor beyond its tolerance, or None."""
    for name, ours, truth in zip(names, actual, expected, strict=True):
        error = float((ours.double() - truth).abs().max() / truth.abs().max())
        allowed = TOLERANCE[ours.dtype]
        if not error <= allowed:  # a NaN must not pass
            return f"{name} differs from the float64 oracle by {error:.1e}, allowed {allowed:.0e}"
    return None


def _elu_plus_one(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def _causal(scores: torch.Tensor, rows: torch.Tensor, masked: float) -> torch.Tensor:
    """Scores (B, H, R, N) with the keys after each row's own position set to `masked`."""
    later = torch.arange(scores.shape[-1]) > rows[:, None]  # (R, N)
    return scores.masked_fill(later, masked)
