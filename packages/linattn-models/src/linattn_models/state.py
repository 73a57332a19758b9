"""The state of a transformer between two steps of decoding."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from linattn_core import LinearAttentionState
from linattn_core.errors import expected
from linattn_models.validation import at_least


class KeyValueCache(NamedTuple):
    """The keys and values of one softmax layer, allocated for the longest sequence.

    Attributes:
        keys: (B, H, max_length, D); positions not yet written hold zeros.
        values: (B, H, max_length, M).
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


LayerState = LinearAttentionState | KeyValueCache


@dataclass(frozen=True)
class Cursor:
    """The position of each row's next input.

    Attributes:
        position: one int for all rows, or (B,) int64 when rows are at different positions.
        furthest: the largest position, an int, so that reading it waits for no device.
    """

    position: int | Tensor
    furthest: int

    @classmethod
    def at(cls, positions: Tensor) -> Cursor:
        """The cursor for (B,) positions: a plain int where all are equal."""
        if positions.numel() == 0:
            return cls(0, 0)
        low, high = (int(bound) for bound in positions.aminmax())
        return cls(high if low == high else positions.long(), high)

    @classmethod
    def after(cls, length: int, lengths: Tensor | None) -> Cursor:
        """The cursor after prompts of (B,) lengths, all `length` by default."""
        return cls(length, length) if lengths is None else cls.at(lengths)

    def advanced(self) -> Cursor:
        """The cursor one position later."""
        return Cursor(self.position + 1, self.furthest + 1)

    def index_select(self, indices: Tensor) -> Cursor:
        """The cursor of the rows `indices`."""
        if isinstance(self.position, int):
            return self
        return Cursor.at(self.position.index_select(0, indices.to(self.position.device)))

    def to(self, device: torch.device) -> Cursor:
        """The cursor with its position, where that is a tensor, on `device`."""
        if isinstance(self.position, int):
            return self
        return Cursor(self.position.to(device), self.furthest)

    @cached_property
    def visible(self) -> Tensor | None:
        """(B, 1, 1, furthest + 1) bool, the cached positions that each row sees; None for all.

        Cached, because every layer of a step reads it.
        """
        if isinstance(self.position, int):
            return None
        slots = torch.arange(self.furthest + 1, device=self.position.device)
        return (slots <= self.position.unsqueeze(1)).unsqueeze(1).unsqueeze(1)


@dataclass(frozen=True)
class DecodingState:
    """The state of a batch of sequences: `step` takes it and returns the next.

    Under `torch.no_grad` a step updates the tensors of its argument in place, so `clone()` a state
    that is needed again. With gradients on, the argument stays as it was.

    Attributes:
        layers: for each layer a `LinearAttentionState` (of fixed size) or a `KeyValueCache`.
        cursor: the positions of the next inputs.
        max_length: the most positions; None without a bound.
    """

    layers: tuple[LayerState, ...]
    cursor: Cursor
    max_length: int | None = None

    @property
    def batch(self) -> int:
        """B, the number of sequences."""
        return self.layers[0][0].shape[0]

    @property
    def position(self) -> int | Tensor:
        """Inputs seen so far: an int, or (B,) int64 when rows differ."""
        return self.cursor.position

    def check_step(self, rows: int) -> None:
        """Refuses a step of another number of sequences, or past the last position.

        Raises:
            ValueError: with both numbers.
        """
        if rows != self.batch:
            wanted = f"rows for the state's {self.batch} sequences"
            raise ValueError(expected("a step", wanted, f"inputs for {rows}"))
        if self.max_length is not None and self.cursor.furthest >= self.max_length:
            got = f"room for {self.max_length} positions and all are taken"
            advice = "start with a larger max_length"
            raise ValueError(expected("the state of a step", "a free position", got, advice))

    def index_select(self, indices: Tensor) -> DecodingState:
        """The states of the rows `indices`, as a copy: repeats fork a row, omissions drop it.

        Args:
            indices: (new batch,) int64 or int32 rows.
        """
        layers = tuple(layer.index_select(indices) for layer in self.layers)
        return replace(self, layers=layers, cursor=self.cursor.index_select(indices))

    def clone(self) -> DecodingState:
        """A copy that shares no memory with this state."""
        return replace(self, layers=tuple(layer.clone() for layer in self.layers))

    def detach(self) -> DecodingState:
        """The same memory, detached from autograd."""
        return replace(self, layers=tuple(layer.detach() for layer in self.layers))

    def to(self, *args: Any, **kwargs: Any) -> DecodingState:
        """The state moved or cast as by `torch.Tensor.to`; positions are moved, never cast."""
        layers = tuple(layer.to(*args, **kwargs) for layer in self.layers)
        return replace(self, layers=layers, cursor=self.cursor.to(layers[0][0].device))

    @property
    def nbytes(self) -> int:
        """Bytes of all layers for the whole batch."""
        return sum(layer.nbytes for layer in self.layers)


def zero_states(
    layers: int, batch: int, heads: int, head_dim: int, device: torch.device
) -> tuple[LinearAttentionState, ...]:
    """The states of linear attention before the first position, in float32, one a layer."""
    shape = (batch, heads, head_dim, head_dim)
    return tuple(
        LinearAttentionState.zeros(*shape, dtype=torch.float32, device=device)
        for _ in range(layers)
    )


def check_prompts(length: int, max_length: int | None) -> None:
    """Refuses prompts that take more than `max_length` positions."""
    if max_length is not None and length > max_length:
        wanted = f"at most max_length {max_length} positions"
        advice = "shorten the prompts or raise max_length"
        raise ValueError(expected("prompts", wanted, length, advice))


def check_positions(cursor: Cursor, positions: int) -> None:
    """Refuses a step past the last position of the model."""
    if cursor.furthest >= positions:
        wanted = f"a position below {positions}, the model's number of positions"
        advice = "build the model with a larger max_length"
        raise ValueError(expected("a step", wanted, f"position {cursor.furthest}", advice))


def room_for(max_length: int | None, positions: int) -> int:
    """The positions to allocate, by default all of the model's."""
    room = positions if max_length is None else max_length
    at_least("max_length", room, 1)
    if room > positions:
        raise ValueError(expected("max_length", f"at most the model's {positions} positions", room))
    return room
