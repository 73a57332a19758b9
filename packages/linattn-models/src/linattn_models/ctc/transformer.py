"""The paper's recognizer: a transformer that sees all frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from linattn_models.ctc.config import CTCTransformerConfig
from linattn_models.ctc.layers import Convolution, Subsampling
from linattn_models.ctc.recognizer import (
    Recognizer,
    blank_past,
    check_frames,
    classified,
    past_lengths,
)
from linattn_models.positions import sinusoids
from linattn_models.transformer import Transformer
from linattn_models.validation import exact_keys, lengths_within


class CTCTransformer(Recognizer):
    """log p(class | all frames) for every output frame, by a transformer that is not causal.

    Args:
        config: the layers.
    """

    def __init__(self, config: CTCTransformerConfig) -> None:
        super().__init__()
        self.config = config
        embed_dim = config.transformer.embed_dim
        features = config.num_features
        self.subsampling = Subsampling(config.channels) if config.subsampling > 1 else None
        if self.subsampling is not None:
            features = self.subsampling.num_outputs(features)
        self.input = nn.Linear(features, embed_dim)
        convolutions = config.transformer.num_layers if config.depthwise_kernel else 0
        self.convolutions = nn.ModuleList(
            Convolution(embed_dim, config.depthwise_kernel) for _ in range(convolutions)
        )
        self.transformer = Transformer(config.transformer)
        self.output = nn.Linear(embed_dim, config.num_phones + 1)

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """The output frames of rows with so many input frames: ceil(length / subsampling)."""
        return (lengths + self.config.subsampling - 1) // self.config.subsampling

    def forward(self, frames: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Log-probabilities of the blank and of each phone, for every output frame.

        Args:
            frames: (B, T, F), in the dtype of the weights.
            lengths: (B,) int, in 1..T; each row gives the same as alone in that length.

        Returns:
            (B, ceil(T / subsampling), num_phones + 1). Class 0 is the blank; past a row's
            `output_lengths` it is certain (0, the others -inf), so that decoding all output frames
            gives the same phones.

        Raises:
            ValueError, TypeError: another shape or dtype, or lengths out of 1..T.

        Cost: O(T) time for linear attention, O(T^2) for softmax, O(T log T) for LSH.
        """
        check_frames(frames, self.config.num_features, self.output.weight)
        if lengths is not None:
            lengths_within("lengths", lengths, frames.shape[0], frames.shape[1], shortest=1)
            lengths = lengths.to(frames.device)
            frames = frames.masked_fill(past_lengths(lengths, frames.shape[1])[..., None], 0.0)
        if self.subsampling is not None:
            frames = self.subsampling(frames, lengths)
        if lengths is None:
            return self._classified(frames, None, None)
        lengths = self.output_lengths(lengths)
        padding = past_lengths(lengths, frames.shape[1])
        return blank_past(self._classified(frames, lengths, padding), padding)

    def to_dict(self) -> dict[str, Any]:
        """What rebuilds the model without its weights, as JSON values."""
        return {"ctc_transformer": self.config.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> CTCTransformer:
        """A model with fresh weights of the shape that `to_dict` described.

        Raises:
            ValueError: an unknown or missing key, or a value out of range.
        """
        values = exact_keys("the description of a CTCTransformer", values, ["ctc_transformer"])
        return cls(CTCTransformerConfig.from_dict(values["ctc_transformer"]))

    def _classified(self, frames: Tensor, lengths: Tensor | None, padding: Tensor | None) -> Tensor:
        weight = self.output.weight
        with torch.device(weight.device):
            positions = sinusoids(frames.shape[1], self.config.transformer.embed_dim)
        # In the dtype of the weights, so that sums over blocks are float32 inside autocast, too.
        x = self.input(frames) + positions.to(weight.dtype)
        for index, block in enumerate(self.transformer.blocks):
            if self.convolutions:
                x = self.convolutions[index](x, padding)
            x = block(x, lengths)
        return classified(self.output, self.transformer.norm(x))
