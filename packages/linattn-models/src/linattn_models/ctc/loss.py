"""The loss of CTC: every alignment of the phones to the frames counts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_models.ctc.labels import BLANK, check_classes
from linattn_models.validation import lengths_within


def ctc_loss(
    log_probabilities: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> Tensor:
    """The mean over rows of -log p(phones | frames) / number of phones, in nats.

    p(phones | frames) is the sum over all paths of classes, one a frame, that spell the phones
    when repeats are made one and blanks left out (Graves et al. 2006, equation 3). Long and short
    rows weigh the same; a row without phones counts as one of one.

    No infinity is turned into zero: rows that no path spells are refused, so that one could only
    come from probabilities that broke down, which must be seen.

    Args:
        log_probabilities: (B, T, C), normalized over C; class 0 is the blank.
        lengths: (B,) int, frames of each row, in 0..T.
        targets: (B, S) int, phones from 1 to C - 1; what stands past a row's length is not read.
        target_lengths: (B,) int, phones of each row, in 0..S.

    Returns:
        A scalar, in float32 at least.

    Raises:
        ValueError, TypeError: another shape or dtype, phones or lengths out of range, or more
            phones than a row's frames can spell: each takes a frame, and the blank between two
            that are the same one more.

    Cost: O(B T S) time and memory.
    """
    check_classes(log_probabilities)
    if not log_probabilities.is_floating_point():
        raise TypeError(
            f"log_probabilities must be of a floating dtype and are {log_probabilities.dtype}."
        )
    batch, frames, classes = log_probabilities.shape
    if batch == 0 or frames == 0:
        raise ValueError(
            "log_probabilities must have at least one row and one frame and have shape "
            f"{tuple(log_probabilities.shape)}."
        )
    lengths_within("lengths", lengths, batch, frames)
    _check_targets(targets, target_lengths, batch, classes)
    lengths, target_lengths = lengths.to(targets.device), target_lengths.to(targets.device)
    _check_room(lengths, targets, target_lengths)
    in_float = log_probabilities.to(torch.promote_types(log_probabilities.dtype, torch.float32))
    return F.ctc_loss(
        in_float.transpose(0, 1),  # (T, B, C)
        targets.long(),
        lengths.long(),
        target_lengths.long(),
        blank=BLANK,
        reduction="mean",
        zero_infinity=False,
    )


def _check_targets(targets: Tensor, target_lengths: Tensor, batch: int, classes: int) -> None:
    if not isinstance(targets, Tensor):
        raise TypeError(f"targets must be a tensor and are a {type(targets).__name__}.")
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise TypeError(f"targets must hold integers and have dtype {targets.dtype}.")
    if targets.ndim != 2 or targets.shape[0] != batch:
        raise ValueError(
            f"targets must have shape ({batch}, phones), one row for each of frames, and have "
            f"{tuple(targets.shape)}."
        )
    lengths_within("target_lengths", target_lengths, batch, targets.shape[1])
    phones = targets[_within(targets, target_lengths)]
    if phones.numel() and not 1 <= int(phones.min()) <= int(phones.max()) < classes:
        raise ValueError(
            f"targets must be phones in 1..{classes - 1}, since {BLANK} is the blank, and reach "
            f"from {int(phones.min())} to {int(phones.max())}."
        )


def _check_room(lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> None:
    same = targets[:, 1:] == targets[:, :-1]
    repeats = (same & _within(targets, target_lengths)[:, 1:]).sum(1)
    needed = target_lengths + repeats
    short = (needed > lengths).nonzero().flatten().tolist()
    if short:
        row = short[0]
        raise ValueError(
            f"Row {row} of targets needs {int(needed[row])} frames (a frame for each of "
            f"{int(target_lengths[row])} phones, a blank between two that are the same) and has "
            f"{int(lengths[row])}; leave it out or take shorter frames."
        )


def _within(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """(B, S) bool: whether a row's length reaches there."""
    places = torch.arange(targets.shape[1], device=targets.device)
    return places < target_lengths.to(targets.device)[:, None]
