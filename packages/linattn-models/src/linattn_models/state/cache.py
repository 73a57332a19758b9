"""The state of a layer between two steps of decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.state import accumulation_dtype


class KeyValueCache(NamedTuple):
    """The keys and values of one softmax layer, allocated for the longest sequence.

    Attributes:
        keys: (B, H_kv, max_length, D); positions that are not written yet hold zeros.
        values: (B, H_kv, max_length, D).
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def zeros(
        cls,
        batch: int,
        heads: int,
        max_length: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> KeyValueCache:
        """The cache before the first key, for `max_length` positions."""
        keys = torch.zeros(batch, heads, max_length, head_dim, dtype=dtype, device=device)
        return cls(keys, torch.zeros_like(keys))

    @classmethod
    def cat(cls, caches: Sequence[KeyValueCache]) -> KeyValueCache:
        """One cache with the sequences of all `caches`, in order, as long as the longest cache."""
        room = max(cache.max_length for cache in caches)
        parts = [cache.with_room(room) for cache in caches]
        return cls(torch.cat([x.keys for x in parts]), torch.cat([x.values for x in parts]))

    def split(self, sizes: int | Sequence[int]) -> list[KeyValueCache]:
        """Splits the sequences into parts, which are views; `sizes` as for `torch.split`."""
        parts = zip(self.keys.split(sizes), self.values.split(sizes), strict=True)
        return [KeyValueCache(keys, values) for keys, values in parts]

    def with_room(self, max_length: int) -> KeyValueCache:
        """The cache resized to `max_length` positions (itself if it has them); new ones are 0."""
        more = max_length - self.max_length
        if more == 0:
            return self
        return KeyValueCache(*(F.pad(x, (0, 0, 0, more)) for x in self))

    @property
    def max_length(self) -> int:
        """The number of positions that the cache has room for."""
        return self.keys.shape[2]

    def index_select(self, indices: Tensor) -> KeyValueCache:
        """The caches of the sequences `indices`, as a copy."""
        indices = indices.to(self.keys.device)
        return KeyValueCache(*(x.index_select(0, indices) for x in self))

    def clone(self) -> KeyValueCache:
        """A copy that shares no memory with this cache."""
        return KeyValueCache(*(x.clone() for x in self))

    def detach(self) -> KeyValueCache:
        """The same memory, detached from autograd."""
        return KeyValueCache(*(x.detach() for x in self))

    def to(self, *args: Any, **kwargs: Any) -> KeyValueCache:
        """The cache moved or cast as by `torch.Tensor.to`."""
        return KeyValueCache(*(x.to(*args, **kwargs) for x in self))

    @property
    def nbytes(self) -> int:
        """Bytes allocated: they grow with `max_length`, unlike those of a linear state."""
        return self.keys.nbytes + self.values.nbytes


class WindowCache(NamedTuple):
    """A window of w keys and values, and the sums over all keys before them: of fixed size.

    Attributes:
        keys: (B, H_kv, w, D); that of position p is in slot p mod w, and slots that are not written
            yet hold zeros.
        values: (B, H_kv, w, D).
        s: (B, H_kv, F, D), the sums over the keys that have left the window.
        z: (B, H_kv, F).
    """

    keys: Tensor
    values: Tensor
    s: Tensor
    z: Tensor

    @classmethod
    def zeros(
        cls,
        batch: int,
        heads: int,
        window_size: int,
        features: int,
        head_dim: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str | None = None,
    ) -> WindowCache:
        """The cache before the first key; the sums are in the dtype that `dtype` is summed in."""
        keys = torch.zeros(batch, heads, window_size, head_dim, dtype=dtype, device=device)
        sums = LinearAttentionState.zeros(
            batch, heads, features, head_dim, dtype=dtype, device=device
        )
        return cls(keys, torch.zeros_like(keys), *sums)

    @property
    def sums(self) -> LinearAttentionState:
        """S and z."""
        return LinearAttentionState(self.s, self.z)

    @classmethod
    def cat(cls, caches: Sequence[WindowCache]) -> WindowCache:
        """One cache with the sequences of all `caches`, in order."""
        return cls(*map(torch.cat, zip(*caches, strict=True)))

    def split(self, sizes: int | Sequence[int]) -> list[WindowCache]:
        """Splits the sequences into parts, which are views; `sizes` as for `torch.split`."""
        return [WindowCache(*parts) for parts in zip(*(x.split(sizes) for x in self), strict=True)]

    def index_select(self, indices: Tensor) -> WindowCache:
        """The caches of the sequences `indices`, as a copy."""
        indices = indices.to(self.keys.device)
        return WindowCache(*(x.index_select(0, indices) for x in self))

    def clone(self) -> WindowCache:
        """A copy that shares no memory with this cache."""
        return WindowCache(*(x.clone() for x in self))

    def detach(self) -> WindowCache:
        """The same memory, detached from autograd."""
        return WindowCache(*(x.detach() for x in self))

    def to(self, *args: Any, **kwargs: Any) -> WindowCache:
        """The cache moved or cast as by `torch.Tensor.to`, but sums never to half precision."""
        keys, values = (x.to(*args, **kwargs) for x in (self.keys, self.values))
        return WindowCache(keys, values, *move_sums(self.sums, *args, **kwargs))

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(x.nbytes for x in self)


def move_sums(sums: LinearAttentionState, *args: Any, **kwargs: Any) -> LinearAttentionState:
    """The sums moved or cast as by `torch.Tensor.to`, to float32 in place of half precision.

    Models of half precision sum in float32.
    """
    like = sums.z[:0].to(*args, **kwargs)
    if accumulation_dtype(like.dtype) == like.dtype:
        return sums.to(*args, **kwargs)
    return sums.to(like.device, accumulation_dtype(like.dtype), copy=True)  # as a cast copies


# The state of a layer whose size does not grow.
FixedState = LinearAttentionState | WindowCache
LayerState = FixedState | KeyValueCache


def zero_states(
    layers: int, batch: int, heads: int, head_dim: int, device: torch.device, window: int = 0
) -> tuple[FixedState, ...]:
    """The states of fixed size before the first position, float32, one per layer; F = D."""

    places: dict[str, Any] = {"dtype": torch.float32, "device": device}

    def zeros() -> FixedState:
        if window:
            return WindowCache.zeros(batch, heads, window, head_dim, head_dim, **places)
        return LinearAttentionState.zeros(batch, heads, head_dim, head_dim, **places)

    return tuple(zeros() for _ in range(layers))
