"""The state of linear attention: sums over the keys so far, of a size that does not grow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from linattn_core.errors import expected
from linattn_core.torch_private import register_namedtuple

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of sums, S and z for inputs of `dtype`: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


#: The same for the dtypes that calls may have.
SUMS = {x: accumulation_dtype(x) for x in FLOATS}


class TensorTuple(tuple[Tensor, ...]):
    """The methods that states have in common: named tuples of tensors, whose rows are sequences.

    class MyState(TensorTuple, MyFields): ...    # where MyFields is a NamedTuple
    """

    __slots__ = ()

    @classmethod
    def cat(cls, states: Sequence[Self]) -> Self:
        """One state with the sequences of all `states`, in order."""
        if not states:
            raise ValueError(expected("states", f"at least one {cls.__name__}", "none"))
        return cls._of([torch.cat(parts) for parts in zip(*states, strict=True)])

    def split(self, sizes: int | Sequence[int]) -> list[Self]:
        """Splits the sequences into parts, in order: the inverse of `cat`.

        Args:
            sizes: as for `torch.split`: one number of sequences for all parts (the last may have
                fewer), or a list with the number of each part.

        Returns:
            Views of this state's memory, which change when the state is updated in place.
        """
        parts = zip(*[x.split(sizes) for x in self], strict=True)
        return [self._of(part) for part in parts]

    def index_select(self, indices: Tensor) -> Self:
        """The states of the sequences `indices` (any length, repeats allowed), as a copy.

        A repeated index forks a sequence, and a missing one drops it, as beam search needs.

        Args:
            indices: (new batch,) int32 or int64, positions in the batch.
        """
        indices = indices.to(self[0].device)
        return self._of([x.index_select(0, indices) for x in self])

    def clone(self) -> Self:
        """A copy that shares no memory with this state."""
        return self._of([x.clone() for x in self])

    def detach(self) -> Self:
        """The same memory, detached from autograd (for truncated backpropagation)."""
        return self._of([x.detach() for x in self])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """The state, moved or cast as by `torch.Tensor.to`."""
        return self._of([x.to(*args, **kwargs) for x in self])

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum([x.numel() * x.element_size() for x in self])

    @classmethod
    def _of(cls, tensors: Iterable[Tensor]) -> Self:
        # A named tuple takes its fields one by one; a tuple, as mypy sees it, does not.
        return cls(*tensors)


class _Sums(NamedTuple):
    s: Tensor
    z: Tensor


class LinearAttentionState(TensorTuple, _Sums):
    """The sums over the keys so far (equations 10 and 11 of the paper; 16 to 19 as an RNN).

        s = sum_j phi(k_j) v_j^T        z = sum_j phi(k_j)

    It is a named tuple, so `torch.compile`, `torch.export` and pytrees accept it, and an exported
    program that takes one can be saved.

    Attributes:
        s: (B, H, F, M), float32 (float64 for float64 inputs); H_kv heads with grouped heads.
        z: (B, H, F), the same dtype and device as `s`.
    """

    __slots__ = ()

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


def decay_state(state: LinearAttentionState, factor: Tensor) -> LinearAttentionState:
    """The state times a factor for each sequence and head, (B, H) or (H,)."""
    return LinearAttentionState(state.s * factor[..., None, None], state.z * factor[..., None])


register_namedtuple(LinearAttentionState, "linattn_core.LinearAttentionState")
