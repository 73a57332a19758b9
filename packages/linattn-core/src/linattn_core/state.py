"""The state of linear attention: what a sequence leaves behind, of a size that does not grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.torch_private import register_namedtuple


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, S and z for inputs of `dtype`: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


class LinearAttentionState(NamedTuple):
    """The sums over the keys seen so far (equations 18 and 19 of the paper).

        s = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)

    Being a named tuple it passes through `torch.compile`, `torch.export` and pytrees as it is; a
    program that was exported with one can be saved.

    Attributes:
        s: (B, H, F, M), float32 (float64 for float64 inputs).
        z: (B, H, F), the same dtype and device as `s`.
    """

    s: Tensor
    z: Tensor

    @classmethod
    def zeros(
        cls,
        batch: int,
        heads: int,
        feature_dim: int,
        value_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> LinearAttentionState:
        """The state before the first key.

        Args:
            batch, heads, feature_dim, value_dim: B, H, F, M.
            dtype: that of the inputs; half precisions get a float32 state.
            device: where the state lives.
        """
        sums = accumulation_dtype(dtype)
        return cls(
            torch.zeros(batch, heads, feature_dim, value_dim, dtype=sums, device=device),
            torch.zeros(batch, heads, feature_dim, dtype=sums, device=device),
        )

    @classmethod
    def cat(cls, states: Sequence[LinearAttentionState]) -> LinearAttentionState:
        """One state holding the sequences of all `states`, in order (join of batches)."""
        if not states:
            raise ValueError(expected("states", "at least one LinearAttentionState", "none"))
        return cls(torch.cat([x.s for x in states]), torch.cat([x.z for x in states]))

    def split(self, sizes: int | Sequence[int]) -> list[LinearAttentionState]:
        """The state in parts of so many sequences each, in order: the inverse of `cat`.

        Args:
            sizes: as for `torch.split`: sequences in every part (fewer in the last), or in each.

        Returns:
            Views of this state's memory, which follow updates in place.
        """
        parts = zip(self.s.split(sizes), self.z.split(sizes), strict=True)
        return [LinearAttentionState(s, z) for s, z in parts]

    def index_select(self, indices: Tensor) -> LinearAttentionState:
        """The states of the sequences `indices` (any length, repeats allowed), as a copy.

        Repeating an index forks a sequence, permuting reorders, leaving out drops: beam search.

        Args:
            indices: (new batch,) int tensor of positions in the batch.
        """
        indices = indices.to(self.s.device)
        return LinearAttentionState(
            self.s.index_select(0, indices), self.z.index_select(0, indices)
        )

    def clone(self) -> LinearAttentionState:
        """A copy that shares no memory with this state."""
        return LinearAttentionState(self.s.clone(), self.z.clone())

    def detach(self) -> LinearAttentionState:
        """The same numbers, cut off from autograd (truncated back-propagation)."""
        return LinearAttentionState(self.s.detach(), self.z.detach())

    def to(self, *args: Any, **kwargs: Any) -> LinearAttentionState:
        """The state moved or cast as by `torch.Tensor.to`."""
        return LinearAttentionState(self.s.to(*args, **kwargs), self.z.to(*args, **kwargs))

    @property
    def nbytes(self) -> int:
        """Bytes that the two tensors hold; it does not depend on the length seen."""
        return self.s.numel() * self.s.element_size() + self.z.numel() * self.z.element_size()


register_namedtuple(LinearAttentionState, "linattn_core.LinearAttentionState")
