"""Scratch memory, allocated once per call, and how a long sequence is cut to fit into it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 64
"""C, the positions of a chunk, whose weights are one C x C matrix."""

BUFFER_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}
"""The most elements of one scratch tensor. On a CPU a few such tensors stay in the cache, so that
elementwise operations cost little; a GPU needs enough work for all its processors."""


class Workspace:
    """Named scratch tensors of one dtype and device, reused from segment to segment."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._flat: dict[str, Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        """An uninitialized tensor of `shape`, which reuses the memory of this name."""
        size = 1
        for extent in shape:
            size *= extent
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size:
            flat = self._flat[name] = torch.empty(size, dtype=self.dtype, device=self.device)
        return flat[:size].view(shape)


class Segment(NamedTuple):
    """A run of positions that is processed at once: `chunks` chunks of `size` positions."""

    start: int
    stop: int
    chunks: int
    size: int


def elements(device: torch.device) -> int:
    """The most elements that one scratch tensor may have on this device."""
    return BUFFER_ELEMENTS.get(device.type, BUFFER_ELEMENTS["cuda"])


def batch_groups(batch: int, heads: int, width: int, device: torch.device) -> Iterator[slice]:
    """Slices of the batch, each so small that one chunk of it fits into a scratch tensor."""
    size = max(1, elements(device) // max(1, heads * CHUNK * width))
    for start in range(0, batch, size):
        yield slice(start, min(start + size, batch))


def runs(length: int, rows: int, width: int, device: torch.device) -> list[Segment]:
    """Cuts a sequence into segments of one chunk each, as long as scratch allows.

    Args:
        length: N.
        rows: batch * heads.
        width: max(F, M).
        device: where the tensors are.
    """
    size = max(1, elements(device) // max(1, rows * width))
    starts = range(0, length, size)
    return [Segment(i, min(i + size, length), 1, min(size, length - i)) for i in starts]


def chunk_runs(
    length: int, rows: int, width: int, state: int, device: torch.device
) -> list[Segment]:
    """Cuts a sequence into segments of whole chunks of at most `CHUNK`, and one with the rest.

    Args:
        length, rows, width, device: as for `runs`.
        state: F * M, elements of the state between two chunks.
    """
    # Chunks of nearly equal size, in multiples of eight: 65 positions are 40 + 25, not 64 + 1.
    count = -(-length // CHUNK)
    size = min(CHUNK, -(-length // max(1, count) // 8) * 8)
    if size == 0 or length <= size:
        return [Segment(0, length, 1, length)] if length else []
    limit, rows, state = elements(device), max(1, rows), max(1, state)
    chunks = min(limit // (rows * size * width), 4 * limit // (rows * state), length // size)
    chunks = max(1, chunks)
    cut = []
    whole = length - length % size
    for start in range(0, whole, chunks * size):
        stop = min(start + chunks * size, whole)
        cut.append(Segment(start, stop, (stop - start) // size, size))
    if whole < length:
        cut.append(Segment(whole, length, 1, length - whole))
    return cut
