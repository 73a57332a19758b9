"""What the recognizers share: the checks of frames, the loss and greedy decoding."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.ctc.labels import BLANK, ctc_greedy
from linattn_models.ctc.loss import ctc_loss


class Recognizer(nn.Module):
    """Frames (B, T, F) in, log-probabilities of the classes (B, T', num_phones + 1) out.

    A subclass implements `forward`, and `output_lengths` where T' is not T.
    """

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The output frames of rows with so many input frames, of the same shape and dtype."""
        return lengths

    def loss(
        self, frames: Tensor, lengths: Tensor | None, targets: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """The mean over rows of nats per phone, a scalar; see `ctc_loss`.

        Args:
            frames, lengths: as for `forward`.
            targets: (B, S) int, phones from 1 to num_phones, padded on the right with anything.
            target_lengths: (B,) int, in 0..S; `ctc_frames_needed` says which rows have too many.
        """
        log_probabilities = self(frames, lengths)
        if lengths is None:
            lengths = torch.full((frames.shape[0],), frames.shape[1], device=frames.device)
        return ctc_loss(log_probabilities, self.output_lengths(lengths), targets, target_lengths)

    @torch.no_grad()
    def greedy(self, frames: Tensor, lengths: Tensor | None = None) -> list[list[int]]:
        """The phones of each row's likeliest path; see `ctc_greedy`."""
        return ctc_greedy(self(frames, lengths))  # past a row's length the blank is certain


def check_frames(frames: Tensor, num_features: int, weight: Tensor) -> None:
    """Refuses anything but (B, T, F) with a row and a frame, in the dtype of the weights."""
    if frames.ndim != 3 or 0 in frames.shape or frames.shape[2] != num_features:
        wanted = f"shape (batch, frames, {num_features}) with at least one row and one frame"
        raise ValueError(expected("frames", wanted, tuple(frames.shape)))
    if frames.dtype != weight.dtype:
        advice = "convert them by .to()"
        raise TypeError(expected("frames", f"{weight.dtype}, as the weights", frames.dtype, advice))


def classified(output: nn.Linear, hidden: Tensor) -> Tensor:
    """Log-probabilities of the classes, in the dtype of the weights inside autocast, too."""
    return cast(Tensor, output(hidden)).log_softmax(-1, dtype=output.weight.dtype)


def past_lengths(lengths: Tensor, length: int) -> Tensor:
    """(B, length) bool: the padding, at or past each row's length."""
    return torch.arange(length, device=lengths.device) >= lengths.unsqueeze(1)


def blank_past(log_probabilities: Tensor, padding: Tensor) -> Tensor:
    """The log-probabilities (B, T, C) with a certain blank (0, the others -inf) in the padding."""
    certain = torch.full_like(log_probabilities[0, 0], -torch.inf)
    certain[BLANK] = 0.0
    return torch.where(padding.unsqueeze(-1), certain, log_probabilities)
