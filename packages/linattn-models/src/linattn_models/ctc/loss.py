"""The CTC loss: the sum over all alignments of phones and frames."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.values import can_be_read
from linattn_models.basics.validation import integers, lengths_within, wrong_shape
from linattn_models.ctc.alignment import BLANK, check_classes


def ctc_loss(
    log_probabilities: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> Tensor:
    """The mean over rows of -log p(phones | frames) / number of phones, in nats.

    p(phones | frames) is the sum over all paths (one class per frame) that give the phones after
    repeats are merged and blanks removed (Graves et al. 2006, equation 3). All rows have the same
    weight, whatever their length; a row without phones is divided by 1.

    Rows without a path raise an error, so an infinite loss always means wrong probabilities, and
    is not set to zero.

    Args:
        log_probabilities: (B, T, C), normalized over C; class 0 is the blank.
        lengths: (B,) int, frames of each row, in 0..T.
        targets: (B, S) int, phones from 1 to C - 1; values past a row's length are not read.
        target_lengths: (B,) int, phones of each row, in 0..S.

    Returns:
        A scalar, in float32 at least.

    Raises:
        ValueError, TypeError: another shape or dtype, phones or lengths out of range, or more
            phones than a row's frames allow: each needs a frame, and two equal neighbors need
            one more for the blank between them.

    Cost: O(B T S) time and memory.
    """
    check_classes(log_probabilities)
    if not log_probabilities.is_floating_point():
        raise TypeError(expected("log_probabilities", "a floating dtype", log_probabilities.dtype))
    batch, frames, _ = log_probabilities.shape
    if batch == 0 or frames == 0:
        got = f"shape {tuple(log_probabilities.shape)}"
        raise ValueError(expected("log_probabilities", "at least one row and one frame", got))
    lengths_within("lengths", lengths, batch, frames)
    return loss_of_outputs(log_probabilities, lengths, targets, target_lengths)


def loss_of_outputs(
    log_probabilities: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> Tensor:
    """`ctc_loss` of what a recognizer returned, and of lengths that it has checked."""
    _check_targets(targets, target_lengths, len(log_probabilities), log_probabilities.shape[2])
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


def ctc_frames_needed(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """The fewest output frames that each row's phones need: one per phone, one more per repeat.

    A row that needs more than its `output_lengths` has no alignment, and `ctc_loss` refuses it.

    Args:
        targets: (B, S) int; values past a row's length are not read.
        target_lengths: (B,) int, in 0..S.

    Returns:
        (B,) int.
    """
    same = targets[:, 1:] == targets[:, :-1]
    repeats = (same & _within(targets, target_lengths)[:, 1:]).sum(1)
    return target_lengths.to(targets.device) + repeats


def _check_targets(targets: Tensor, target_lengths: Tensor, batch: int, classes: int) -> None:
    integers("targets", targets)
    if targets.ndim != 2 or targets.shape[0] != batch:
        raise wrong_shape("targets", f"({batch}, phones), a row for each of frames", targets)
    lengths_within("target_lengths", target_lengths, batch, targets.shape[1])
    if not (can_be_read(targets) and can_be_read(target_lengths)):
        return
    phones = targets[_within(targets, target_lengths)]
    if phones.numel() and not 1 <= int(phones.min()) <= int(phones.max()) < classes:
        wanted = f"phones in 1..{classes - 1}, since {BLANK} is the blank"
        raise ValueError(expected("targets", wanted, f"{int(phones.min())} to {int(phones.max())}"))


def _check_room(lengths: Tensor, targets: Tensor, target_lengths: Tensor) -> None:
    needed = ctc_frames_needed(targets, target_lengths)
    if not (can_be_read(lengths) and can_be_read(needed)):
        return
    short = (needed > lengths).nonzero().flatten().tolist()
    if short:
        row = short[0]
        wanted = (
            f"{int(needed[row])} frames, one for each of {int(target_lengths[row])} phones and "
            "for the blank between equal neighbors"
        )
        advice = "leave the row out or take shorter frames"
        raise ValueError(expected(f"row {row} of targets", wanted, int(lengths[row]), advice))


def _within(targets: Tensor, target_lengths: Tensor) -> Tensor:
    """(B, S) bool: the places before each row's length."""
    places = torch.arange(targets.shape[1], device=targets.device)
    return places < target_lengths.to(targets.device)[:, None]
