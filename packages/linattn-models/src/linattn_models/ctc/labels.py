"""Labels: a class for each frame, and the phones that those classes spell."""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_models.validation import lengths_within

BLANK = 0


def ctc_greedy(log_probabilities: Tensor, lengths: Tensor | None = None) -> list[list[int]]:
    """The phones of each row's likeliest path: repeats made one, then blanks left out.

    Args:
        log_probabilities: (B, T, C) of the classes, or any scores of the same order; class 0 is
            the blank.
        lengths: (B,) int, each row's frames, in 0..T; all T by default.

    Returns:
        For each row its phones, from 1 to C - 1.

    Raises:
        ValueError, TypeError: another shape, or lengths that cannot be.
    """
    check_classes(log_probabilities)
    best = log_probabilities.argmax(-1)  # (B, T)
    spoken = best != BLANK
    spoken[:, 1:] &= best[:, 1:] != best[:, :-1]
    if lengths is not None:
        lengths_within("lengths", lengths, *best.shape)
        spoken &= torch.arange(best.shape[1], device=best.device) < lengths.to(best.device)[:, None]
    return [row[kept].tolist() for row, kept in zip(best.cpu(), spoken.cpu(), strict=True)]


def check_classes(log_probabilities: Tensor) -> None:
    """Refuses what is not (B, T, C) with the blank and a phone or more."""
    if log_probabilities.ndim != 3 or log_probabilities.shape[2] < 2:
        raise ValueError(
            "log_probabilities must have shape (batch, frames, classes), with the blank and at "
            f"least one phone, and have {tuple(log_probabilities.shape)}."
        )
