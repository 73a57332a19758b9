"""The position of each row of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Cursor:
    """The position of each row's next input.

    Attributes:
        position: one int for all rows, or (B,) int64 if the rows are at different positions. Ask
            for a Tensor, not for an int: in an exported program it is a symbol.
        furthest: the largest position; an int, so that reading it never waits for a device.
    """

    position: int | Tensor
    furthest: int

    @classmethod
    def at(cls, positions: Tensor) -> Cursor:
        """The cursor for positions (B,), with an int if all are equal."""
        if positions.numel() == 0:
            return cls(0, 0)
        low, high = (int(bound) for bound in positions.aminmax())
        return cls(high if low == high else positions.long(), high)

    def after(self, length: int, lengths: Tensor | None) -> Cursor:
        """The cursor after `lengths` (B,) more positions; None: `length` for all rows."""
        if lengths is None:
            return Cursor(self.position + length, self.furthest + length)
        return Cursor.at(self.position + lengths)

    def rows(self, batch: int, device: torch.device | None = None) -> Tensor:
        """(B,) int64, each row's position."""
        if isinstance(self.position, Tensor):
            return self.position.to(device, torch.int64).expand(batch)
        return torch.full((batch,), self.position, dtype=torch.int64, device=device)

    def places(self, device: torch.device) -> Tensor:
        """() or (B,) int64, each row's position."""
        if isinstance(self.position, Tensor):
            return self.position.to(device)
        return torch.full((), self.position, dtype=torch.int64, device=device)

    def index_select(self, indices: Tensor) -> Cursor:
        """The cursor of the rows `indices`."""
        if not isinstance(self.position, Tensor):
            return self
        return Cursor.at(self.position.index_select(0, indices.to(self.position.device)))

    def clone(self) -> Cursor:
        """A cursor that shares no memory with this one."""
        position = self.position
        return Cursor(position.clone() if isinstance(position, Tensor) else position, self.furthest)

    def to(self, device: torch.device) -> Cursor:
        """The cursor with its position, where that is a tensor, on `device`."""
        if not isinstance(self.position, Tensor):
            return self
        return Cursor(self.position.to(device), self.furthest)

    @property
    def visible(self) -> Tensor | None:
        """(B, 1, 1, furthest + 1) bool, the cached positions that each row sees; None for all."""
        return self._visible if isinstance(self.position, Tensor) else None

    @cached_property
    def _visible(self) -> Tensor:
        """Computed once, because every layer of a step reads it."""
        rows = torch.as_tensor(self.position)
        slots = torch.arange(self.furthest + 1, device=rows.device)
        return (slots <= rows.unsqueeze(1)).unsqueeze(1).unsqueeze(1)


START = Cursor(0, 0)
