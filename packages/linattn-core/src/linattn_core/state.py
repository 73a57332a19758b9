"""The state of linear attention: sums over the keys so far, of a size that does not grow."""

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
    """The sums over the keys so far (equations 10 and 11 of the paper; 16 to 19 as an RNN).

        s = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)

    It is a named tuple, so `torch.compile`, `torch.export` and pytrees accept it, and an exported
    program that takes one can be saved.

    Attributes:
        s: (B, H, F, M), float32 (float64 for float64 inputs); H_kv heads with grouped heads.
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
            dtype: of the inputs; half precisions get a float32 state.
            device: of the state.
        """
        if not dtype.is_floating_point:
            raise TypeError(expected("dtype", "a floating dtype", dtype))
        sums = accumulation_dtype(dtype)
        return cls(
            torch.zeros(batch, heads, feature_dim, value_dim, dtype=sums, device=device),
            torch.zeros(batch, heads, feature_dim, dtype=sums, device=device),
        )

    @classmethod
    def cat(cls, states: Sequence[LinearAttentionState]) -> LinearAttentionState:
        """One state with the sequences of all `states`, in order."""
        if not states:
            raise ValueError(expected("states", "at least one LinearAttentionState", "none"))
        return cls(torch.cat([x.s for x in states]), torch.cat([x.z for x in states]))

    def split(self, sizes: int | Sequence[int]) -> list[LinearAttentionState]:
        """Splits the sequences into parts, in order: the inverse of `cat`.

        Args:
            sizes: as for `torch.split`: one number of sequences for all parts (the last may have
                fewer), or a list with the number of each part.

        Returns:
            Views of this state's memory, which change when the state is updated in place.
        """
        parts = zip(self.s.split(sizes), self.z.split(sizes), strict=True)
        return [LinearAttentionState(s, z) for s, z in parts]

    def index_select(self, indices: Tensor) -> LinearAttentionState:
        """The states of the sequences `indices` (any length, repeats allowed), as a copy.

        A repeated index forks a sequence, and a missing one drops it, as beam search needs.

        Args:
            indices: (new batch,) int32 or int64, positions in the batch.
        """
        indices = indices.to(self.s.device)
        return LinearAttentionState(
            self.s.index_select(0, indices), self.z.index_select(0, indices)
        )

    def clone(self) -> LinearAttentionState:
        """A copy that shares no memory with this state."""
        return LinearAttentionState(self.s.clone(), self.z.clone())

    def detach(self) -> LinearAttentionState:
        """The same memory, detached from autograd (for truncated backpropagation)."""
        return LinearAttentionState(self.s.detach(), self.z.detach())

    def to(self, *args: Any, **kwargs: Any) -> LinearAttentionState:
        """The state, moved or cast as by `torch.Tensor.to`."""
        return LinearAttentionState(self.s.to(*args, **kwargs), self.z.to(*args, **kwargs))

    @property
    def nbytes(self) -> int:
        """Bytes of the two tensors; the length of the sequence does not change them."""
        return self.s.numel() * self.s.element_size() + self.z.numel() * self.z.element_size()


def decay_state(state: LinearAttentionState, factor: Tensor) -> LinearAttentionState:
    """The state times a factor for each sequence and head, (B, H) or (H,)."""
    return LinearAttentionState(state.s * factor[..., None, None], state.z * factor[..., None])


register_namedtuple(LinearAttentionState, "linattn_core.LinearAttentionState")
