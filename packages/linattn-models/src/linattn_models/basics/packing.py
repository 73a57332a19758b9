"""Rows of different lengths: their padding, and how they are packed into one sequence."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


def past_lengths(lengths: Tensor, length: int) -> Tensor:
    """(B, length) bool, True at padding: at or past each row's length."""
    return torch.arange(length, device=lengths.device) >= lengths.unsqueeze(1)


@dataclass(frozen=True)
class Packing:
    """Where the positions of padded rows (B, N) are when the rows are packed end to end.

    Whatever treats each position alone (norms, linear layers, the feed-forward network) reads
    packed rows (1, T, ...) and spends no work on padding. T is the sum of the lengths.

    Attributes:
        batch, length: B and N.
        lengths: (B,) int64, each row's own length in 0..N.
        cu_seqlens: (B + 1,) int64; row b is packed from cu_seqlens[b] to cu_seqlens[b + 1].
        places: (T,) int64, the index of each packed position among the B N padded ones.
    """

    batch: int
    length: int
    lengths: Tensor
    cu_seqlens: Tensor
    places: Tensor

    @classmethod
    def of(cls, lengths: Tensor, length: int) -> Packing:
        """The packing of rows with these lengths (B,), which are padded to `length`.

        Cost: on a GPU, waits for it once, because T is read.
        """
        lengths = lengths.long()
        places = (~past_lengths(lengths, length)).flatten().nonzero().squeeze(1)
        return cls(lengths.shape[0], length, lengths, F.pad(lengths.cumsum(0), (1, 0)), places)

    def pack(self, x: Tensor) -> Tensor:
        """(B, N, ...) -> (1, T, ...)."""
        return x.flatten(0, 1).index_select(0, self.places).unsqueeze(0)

    def unpack(self, x: Tensor) -> Tensor:
        """(1, T, ...) -> (B, N, ...), with zeros at padding."""
        padded = x.new_zeros(self.batch * self.length, *x.shape[2:])
        padded = padded.index_copy(0, self.places, x.squeeze(0))
        return padded.view(self.batch, self.length, *x.shape[2:])


def last_of(x: Tensor, rows: Packing | Tensor | None = None) -> Tensor:
    """The last position of each row, (B, ...).

    Args:
        x: packed rows (1, T, ...) with their packing, or padded ones (B, N, ...).
        rows: the packing, or the lengths (B,) of padded rows; None where all have N positions.

    Of an empty row it is any position, and zero where all rows are empty.
    """
    if x.shape[1] == 0:
        return x.new_zeros(rows.batch if isinstance(rows, Packing) else x.shape[0], *x.shape[2:])
    if isinstance(rows, Packing):
        return x[0, rows.cu_seqlens[1:] - 1]
    if rows is None:
        return x[:, -1]
    return x[torch.arange(x.shape[0], device=x.device), rows - 1]
