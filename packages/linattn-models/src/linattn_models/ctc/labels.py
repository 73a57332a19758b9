"""From one class per frame to phones."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_models.validation import lengths_within

BLANK = 0


def ctc_greedy(log_probabilities: Tensor, lengths: Tensor | None = None) -> list[list[int]]:
    """The phones of each row's likeliest path: repeats merged, then blanks removed.

    Args:
        log_probabilities: (B, T, C), or other scores in the same order, such as logits; class 0 is
            the blank.
        lengths: (B,) int, each row's frames, in 0..T; all T by default.

    Returns:
        For each row its phones, from 1 to C - 1.

    Raises:
        ValueError, TypeError: another shape, or lengths out of range.
    """
    check_classes(log_probabilities)
    best = log_probabilities.argmax(-1)  # (B, T)
    is_phone = best != BLANK
    is_phone[:, 1:] &= best[:, 1:] != best[:, :-1]
    if lengths is not None:
        lengths_within("lengths", lengths, *best.shape)
        is_phone &= (
            torch.arange(best.shape[1], device=best.device) < lengths.to(best.device)[:, None]
        )
    return [row[mask].tolist() for row, mask in zip(best.cpu(), is_phone.cpu(), strict=True)]


def check_classes(log_probabilities: Tensor) -> None:
    """Refuses anything but (B, T, C) with the blank and at least one phone."""
    if log_probabilities.ndim != 3 or log_probabilities.shape[2] < 2:
        wanted = "shape (batch, frames, classes) with the blank and at least one phone"
        raise ValueError(expected("log_probabilities", wanted, tuple(log_probabilities.shape)))
