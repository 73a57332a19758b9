"""What stands before the blocks: subsampling of frames, and depthwise convolutions."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linattn_models.basics.packing import past_lengths


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
        outputs: Tensor = F.relu(self.second(maps))
        return outputs.transpose(1, 2).flatten(2)

    def step(
        self, x: Tensor, frame: Tensor, maps: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """More frames of a stream, a multiple of 4 if others follow.

        Args:
            x: (B, T, F), with zeros in the padding.
            frame: (B, 1, F), the last frame before them; zeros at first.
            maps: (B, channels, 1, ceil(F / 2)), the last of the first convolution; zeros at first.
            lengths: (B,) int; the frames past a row's length are padding.

        Returns:
            (B, ceil(T / 4), channels * ceil(F / 4)), and the next `frame` and `maps`.
        """
        seen = torch.cat([frame, x], 1).unsqueeze(1)
        own = F.relu(self._convolve(self.first, seen))
        if lengths is not None:
            padding = past_lengths((lengths + 1) // 2, own.shape[2])
            own = own.masked_fill(padding[:, None, :, None], 0.0)
        outputs = F.relu(self._convolve(self.second, torch.cat([maps, own], 2)))
        # A copy: the caller may write the next frames into the memory of these.
        return outputs.transpose(1, 2).flatten(2), x[:, -1:].clone(), own[:, :, -1:]

    def _convolve(self, convolution: nn.Conv2d, seen: Tensor) -> Tensor:
        """The convolution over (B, channels, 1 + T, F), without zeros before and with one after."""
        odd = (seen.shape[2] - 1) % 2
        weight, bias = convolution.weight, convolution.bias
        return F.conv2d(F.pad(seen, (1, 1, 0, odd)), weight, bias, stride=2)


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

    @property
    def context(self) -> int:
        """The frames that an output sees on each side."""
        return self.depthwise.kernel_size[0] // 2

    def forward(self, x: Tensor, padding: Tensor | None, chunk: int | None = None) -> Tensor:
        """(B, N, E) -> (B, N, E).

        Args:
            x: (B, N, E).
            padding: (B, N) bool, True at padding, where the convolution sees zeros.
            chunk: frames of a chunk, at whose end the convolution sees zeros, too.
        """
        inputs = self.norm(x)
        if padding is not None:
            inputs = inputs.masked_fill(padding.unsqueeze(-1), 0.0)
        channels = inputs.transpose(1, 2)  # (B, E, N)
        if chunk is None or chunk >= x.shape[1]:
            return x + cast(Tensor, self.depthwise(channels)).transpose(1, 2)
        # Each chunk beside the others in the batch, with the frames before it.
        context, length = self.context, x.shape[1]
        windows = F.pad(channels, (context, -length % chunk)).unfold(2, context + chunk, chunk)
        rows = windows.transpose(1, 2).flatten(0, 1)  # (B n, E, context + chunk)
        outputs: Tensor = self._inside(rows).unflatten(0, (x.shape[0], -1))  # (B, n, E, chunk)
        return x + outputs.transpose(2, 3).flatten(1, 2)[:, :length]

    def step(
        self, x: Tensor, before: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """One more chunk: (B, N, E) -> (B, N, E).

        Args:
            before: (B, E, context), what the convolution saw last; zeros at first.
            lengths: (B,) int; the frames past a row's length are padding.

        Returns:
            (B, N, E), and the next `before`, which means nothing after a padded row.
        """
        inputs = self.norm(x)
        if lengths is not None:
            inputs = inputs.masked_fill(past_lengths(lengths, x.shape[1]).unsqueeze(-1), 0.0)
        seen = torch.cat([before, inputs.transpose(1, 2)], 2)
        after = seen[:, :, seen.shape[2] - self.context :]
        return x + self._inside(seen).transpose(1, 2), after

    def _inside(self, seen: Tensor) -> Tensor:
        """(B, E, context + N) -> (B, E, N): the outputs of the last N frames, with zeros after."""
        padded = F.pad(seen, (0, self.context))
        convolution = self.depthwise
        return F.conv1d(padded, convolution.weight, convolution.bias, groups=convolution.groups)
