"""What the recognizers share: layers before the model, the loss and greedy decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from linattn_core.errors import expected
from linattn_models.basics.packing import past_lengths
from linattn_models.basics.precision import dtype_of
from linattn_models.basics.validation import (
    at_least,
    exact_keys,
    instance,
    lengths_within,
    no_dropout,
    wrong_shape,
)
from linattn_models.ctc.alignment import BLANK, ctc_greedy
from linattn_models.ctc.config import FrontConfig
from linattn_models.ctc.front import Subsampling
from linattn_models.ctc.loss import loss_of_outputs


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
        instance("config", config, self.config_class)
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

    def hidden(
        self,
        frames: Tensor,
        lengths: Tensor | None,
        padding: Tensor | None,
        chunk: int | None = None,
    ) -> Tensor:
        """The inputs of the layer `output`: (B, T', num_inputs) -> (B, T', its input width).

        Args:
            frames: (B, T', num_inputs), after subsampling.
            lengths: (B,) int, in 1..T'; None if no row is padded.
            padding: (B, T') bool, True at or past each row's length; None if no row is padded.
            chunk: output frames of a chunk, for a causal recognizer.
        """
        raise NotImplementedError

    @property
    def streams(self) -> bool:
        """Whether frames may be read as they arrive."""
        raise NotImplementedError

    @property
    def how_to_stream(self) -> str:
        """The advice in an error where the recognizer cannot stream."""
        raise NotImplementedError

    @property
    def dropout(self) -> float:
        """Probability with which outputs are dropped in training mode."""
        raise NotImplementedError

    def check_chunk(self, chunk: int) -> int:
        """Output frames of a chunk as an int; only a causal recognizer has chunks."""
        if self.streams:
            return at_least("chunk", chunk, 1)
        wanted = "none, since all frames are seen"
        raise ValueError(expected("chunk", wanted, chunk, self.how_to_stream))

    def forward(
        self, frames: Tensor, lengths: Tensor | None = None, *, chunk: int | None = None
    ) -> Tensor:
        """Log-probabilities of the blank and of each phone, for every output frame.

        Args:
            frames: (B, T, F), in the dtype of the weights.
            lengths: (B,) int, in 1..T; frames at or past a row's length do not change its results.
                All T by default.
            chunk: for a causal transformer, output frames of a chunk, which see each other and all
                chunks before; its `causal_block` by default.

        Returns:
            (B, ceil(T / subsampling), num_phones + 1). Class 0 is the blank; past a row's
            `output_lengths` its probability is 1 (log-probability 0, the others -inf), so that
            decoding all output frames gives the same phones.

        Raises:
            ValueError, TypeError: another shape or dtype, lengths out of 1..T, or a chunk for a
                recognizer that is not causal.
        """
        check_frames(frames, self.config.num_features, dtype_of(self.output))
        chunk = None if chunk is None else self.check_chunk(chunk)
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
        hidden = self.hidden(frames, lengths, padding, chunk)
        log_probabilities = log_softmax_of(self.output, hidden)
        return log_probabilities if padding is None else blank_past(log_probabilities, padding)

    def loss(
        self,
        frames: Tensor,
        lengths: Tensor | None,
        targets: Tensor,
        target_lengths: Tensor,
        *,
        chunk: int | None = None,
    ) -> Tensor:
        """The mean over rows of nats per phone, a scalar; see `ctc_loss`.

        Args:
            frames, lengths, chunk: as for `forward`.
            targets: (B, S) int, phones from 1 to num_phones; values past a row's length are not
                read.
            target_lengths: (B,) int, in 0..S; use `ctc_frames_needed` to find rows with too many
                phones for their frames.
        """
        log_probabilities = self(frames, lengths, chunk=chunk)
        if lengths is None:
            lengths = torch.full((frames.shape[0],), frames.shape[1], device=frames.device)
        lengths = self.output_lengths(lengths)
        return loss_of_outputs(log_probabilities, lengths, targets, target_lengths)

    @torch.no_grad()
    def greedy(
        self, frames: Tensor, lengths: Tensor | None = None, *, chunk: int | None = None
    ) -> list[list[int]]:
        """The phones of each row's likeliest path, in evaluation mode; see `ctc_greedy`."""
        no_dropout(self.training, self.dropout)
        # Past a row's length the blank is certain.
        return ctc_greedy(self(frames, lengths, chunk=chunk))

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
    instance("frames", frames, Tensor)
    if frames.is_nested or frames.ndim != 3 or 0 in frames.shape or frames.shape[2] != num_features:
        wanted = f"(batch, frames, {num_features}) with at least one row and one frame"
        raise wrong_shape("frames", wanted, frames)
    if frames.dtype != dtype:
        advice = "convert them by .to()"
        raise TypeError(expected("frames", f"{dtype}, as the weights", frames.dtype, advice))


def log_softmax_of(output: nn.Linear, hidden: Tensor) -> Tensor:
    """Log-probabilities of the classes, in the dtype of the weights, also inside autocast."""
    return cast(Tensor, output(hidden)).log_softmax(-1, dtype=dtype_of(output))


def blank_past(log_probabilities: Tensor, padding: Tensor) -> Tensor:
    """The log-probabilities (B, T, C); at padding, 0 for the blank and -inf for the others."""
    certain = torch.full_like(log_probabilities[0, 0], -torch.inf)
    certain[BLANK] = 0.0
    return torch.where(padding.unsqueeze(-1), certain, log_probabilities)
