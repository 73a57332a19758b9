"""The layers that only recognizers have. In each, padding has no effect on real frames."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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
