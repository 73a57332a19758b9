"""Memory of large results: freed results leave it to later ones, up to 256 MiB in all.

The system clears every page of new memory, which can take a third of a large call.
`linattn_core.empty_cache` gives back what is kept.
"""

from __future__ import annotations

import torch
from torch import Tensor

from linattn_core.native import empty_contiguous
from linattn_cpu._native import CachedMemory

LARGE = 512 << 10  # bytes; new memory costs smaller results little


def empty(batch: int, heads: int, length: int, width: int, *, dtype: torch.dtype) -> Tensor:
    """An uninitialized contiguous tensor (batch, heads, length, width)."""
    count = batch * heads * length * width
    if count * dtype.itemsize < LARGE:
        # Separate sizes: torch reads them faster than a tuple.
        return torch.empty(batch, heads, length, width, dtype=dtype, device="cpu")
    return _of_cache(count, dtype).view(batch, heads, length, width)


def empty_like(x: Tensor) -> Tensor:
    """An uninitialized contiguous tensor with the shape and dtype of x."""
    if x.numel() * x.dtype.itemsize < LARGE:
        return empty_contiguous(x)
    return _of_cache(x.numel(), x.dtype).view(x.shape)


def _of_cache(count: int, dtype: torch.dtype) -> Tensor:
    try:
        block = CachedMemory(count * dtype.itemsize)
    except MemoryError:
        CachedMemory.empty()
        return torch.empty(count, dtype=dtype, device="cpu")
    # The tensor keeps the block alive. When torch frees the tensor, the cache gets its memory.
    return torch.frombuffer(block, dtype=dtype)
