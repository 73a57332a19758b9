"""What the recognizers share: layers before the model, the loss and greedy decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.ctc.alignment import BLANK, ctc_greedy
from linattn_models.ctc.config import FrontConfig
from linattn_models.ctc.loss import ctc_loss
from linattn_models.precision import precision_of
from linattn_models.validation import exact_keys, lengths_within


class Recognizer(nn.Module):
    """Frames (B, T, F) in, log-probabilities of the classes (B, T', num_phones + 1) out.

    A subclass implements `hidden` and makes the last linear layer, `output`.

    Args:
        config: the layers; the subsampling in front is the same for all recognizers.

    Attributes:
        kind: the key of the configuration in saved models.
        config_class: the class of the configuration.
    """

    kind: ClassVar[str]
    config_class: ClassVar[type[FrontConfig]]
    config: FrontConfig
    output: nn.Linear

    def __init__(self, config: FrontConfig) -> None:
        super().__init__()
        self.config = config
        self.subsampling = Subsampling(config.channels) if config.subsampling > 1 else None

    @property
    def num_inputs(self) -> int:
        """The number of features of a frame after subsampling."""
        features = self.config.num_features
        return features if self.subsampling is None else self.subsampling.num_outputs(features)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Output frames for these numbers of input frames: ceil(lengths / subsampling)."""
        return (lengths + self.config.subsampling - 1) // self.config.subsampling

    def hidden(self, frames: Tensor, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        """The inputs of the layer `output`: (B, T', num_inputs) -> (B, T', its input width).

        Args:
            frames: (B, T', num_inputs), after subsampling.
            lengths: (B,) int, in 1..T'; None if no row is padded.
            padding: (B, T') bool, True at or past each row's length; None if no row is padded.
        """
        raise NotImplementedError

    def forward(self, frames: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Log-probabilities of the blank and of each phone, for every output frame.

        Args:
            frames: (B, T, F), in the dtype of the weights.
            lengths: (B,) int, in 1..T; frames at or past a row's length do not change its results.
                All T by default.

        Returns:
            (B, ceil(T / subsampling), num_phones + 1). Class 0 is the blank; past a row's
            `output_lengths` its probability is 1 (log-probability 0, the others -inf), so that
            decoding all output frames gives the same phones.

        Raises:
            ValueError, TypeError: another shape or dtype, or lengths out of 1..T.
        """
        check_frames(frames, self.config.num_features, precision_of(self.output)[1])
        padding = None
        if lengths is not None:
            lengths_within("lengths", lengths, frames.shape[0], frames.shape[1], shortest=1)
            lengths = lengths.to(frames.device)
            frames = frames.masked_fill(past_lengths(lengths, frames.shape[1])[..., None], 0.0)
        if self.subsampling is not None:
            frames = self.subsampling(frames, lengths)
        if lengths is not None:
            lengths = self.output_lengths(lengths)
            padding = past_lengths(lengths, frames.shape[1])
        log_probabilities = log_softmax_of(self.output, self.hidden(frames, lengths, padding))
        return log_probabilities if padding is None else blank_past(log_probabilities, padding)

    def loss(
        self, frames: Tensor, lengths: Tensor | None, targets: Tensor, target_lengths: Tensor
    ) -> Tensor:
        """The mean over rows of nats per phone, a scalar; see `ctc_loss`.

        Args:
            frames, lengths: as for `forward`.
            targets: (B, S) int, phones from 1 to num_phones; values past a row's length are not
                read.
            target_lengths: (B,) int, in 0..S; use `ctc_frames_needed` to find rows with too many
                phones for their frames.
        """
        log_probabilities = self(frames, lengths)
        if lengths is None:
            lengths = torch.full((frames.shape[0],), frames.shape[1], device=frames.device)
        return ctc_loss(log_probabilities, self.output_lengths(lengths), targets, target_lengths)

    @torch.no_grad()
    def greedy(self, frames: Tensor, lengths: Tensor | None = None) -> list[list[int]]:
        """The phones of each row's likeliest path; see `ctc_greedy`."""
        return ctc_greedy(self(frames, lengths))  # past a row's length the blank is certain

    def to_dict(self) -> dict[str, Any]:
        """The settings from which `from_dict` builds the model, without weights, as JSON values."""
        return {self.kind: self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """A model with the settings that `to_dict` returned, with newly drawn weights."""
        values = exact_keys(f"the description of a {cls.__name__}", values, [cls.kind])
        return cls(cls.config_class.from_dict(values[cls.kind]))


def check_frames(frames: Tensor, num_features: int, dtype: torch.dtype) -> None:
    """Refuses frames that are not (B, T, F) in the dtype of the weights, or are empty."""
    if frames.ndim != 3 or 0 in frames.shape or frames.shape[2] != num_features:
        wanted = f"shape (batch, frames, {num_features}) with at least one row and one frame"
        raise ValueError(expected("frames", wanted, tuple(frames.shape)))
    if frames.dtype != dtype:
        advice = "convert them by .to()"
        raise TypeError(expected("frames", f"{dtype}, as the weights", frames.dtype, advice))


def log_softmax_of(output: nn.Linear, hidden: Tensor) -> Tensor:
    """Log-probabilities of the classes, in the dtype of the weights, also inside autocast."""
    return cast(Tensor, output(hidden)).log_softmax(-1, dtype=precision_of(output)[1])


def blank_past(log_probabilities: Tensor, padding: Tensor) -> Tensor:
    """The log-probabilities (B, T, C); at padding, 0 for the blank and -inf for the others."""
    certain = torch.full_like(log_probabilities[0, 0], -torch.inf)
    certain[BLANK] = 0.0
    return torch.where(padding.unsqueeze(-1), certain, log_probabilities)


class Subsampling(nn.Module):
    """Two 3 x 3 convolutions of stride 2 over time and features, each followed by ReLU.

    Args:
        channels: output channels of both convolutions.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def num_outputs(self, features: int) -> int:
        """The number of features of an output frame, for `features` of an input frame."""
        return self.second.out_channels * ((features + 3) // 4)

    def forward(self, frames: Tensor, lengths: Tensor | None) -> Tensor:
        """(B, T, F), with zeros in the padding -> (B, ceil(T / 4), channels * ceil(F / 4))."""
        maps = F.relu(self.first(frames.unsqueeze(1)))  # (B, channels, T / 2, F / 2)
        if lengths is not None:
            # The bias has made padding nonzero, and the next convolution sees one frame of it.
            padding = past_lengths((lengths + 1) // 2, maps.shape[2])
            maps = maps.masked_fill(padding[:, None, :, None], 0.0)
        return F.relu(self.second(maps)).transpose(1, 2).flatten(2)


class Convolution(nn.Module):
    """x + conv(norm(x)), a depthwise convolution over neighboring frames.

    Args:
        embed_dim: E.
        kernel: the number of frames that an output sees, odd.
    """

    def __init__(self, embed_dim: int, kernel: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(embed_dim)
        self.depthwise = nn.Conv1d(
            embed_dim, embed_dim, kernel, padding=kernel // 2, groups=embed_dim
        )

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        """(B, N, E) -> (B, N, E).

        Args:
            x: (B, N, E).
            padding: (B, N) bool, True at padding, where the convolution sees zeros.
        """
        inputs = self.norm(x)
        if padding is not None:
            inputs = inputs.masked_fill(padding.unsqueeze(-1), 0.0)
        return x + cast(Tensor, self.depthwise(inputs.transpose(1, 2))).transpose(1, 2)


def past_lengths(lengths: Tensor, length: int) -> Tensor:
    """(B, length) bool, True at padding: at or past each row's length."""
    return torch.arange(length, device=lengths.device) >= lengths.unsqueeze(1)
