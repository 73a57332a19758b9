"""The settings of a draw: a number for all rows, or one for each row."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.basics.validation import as_int

# For all rows, or for each one; None in a list switches the setting off in that row.
PerRow = float | Sequence[float | None] | Tensor


@dataclass(frozen=True)
class Setting:
    """A setting that draws may have.

    Attributes:
        name: of the argument.
        wanted: the valid numbers in words.
        is_valid: whether a number is valid, or which numbers of a tensor are.
        off: the number that changes nothing.
        integer: whether it counts something.
    """

    name: str
    wanted: str
    is_valid: Callable[[Any], Any]
    off: float
    integer: bool = False

    def read(self, value: object) -> float | Tensor:
        """The value as a number, or as a tensor (rows,) on the CPU; refuses others."""
        number = self._number(value)
        if number is not None:
            if not self.is_valid(number):
                raise ValueError(expected(self.name, self.wanted, quote(value)))
            return number
        numbers = self._tensor(value)
        valid = self.is_valid(numbers)
        if not bool(valid.all()):
            raise ValueError(expected(self.name, self.wanted, numbers[~valid][0].item()))
        return numbers

    def _number(self, value: object) -> float | None:
        """None for anything but a number."""
        if self.integer:
            number = as_int(value)
            # No tensor takes larger ones, which change nothing either.
            return None if number is None else max(-self.off, min(number, self.off))
        if getattr(value, "ndim", None) == 0:  # of a tensor or an array
            value = cast(Any, value).item()
        if not isinstance(value, Real) or isinstance(value, bool):
            return None
        try:
            return float(value)
        except OverflowError:  # an integer without a float
            return math.inf

    def _tensor(self, value: object) -> Tensor:
        """(rows,) on the CPU; None in a list becomes `off`."""
        several = value.tolist() if isinstance(value, Tensor) and value.ndim == 1 else value
        if isinstance(several, Iterable) and not isinstance(several, (str, bytes, Tensor)):
            numbers = [self._number(self.off if x is None else x) for x in several]
            if None not in numbers:
                dtype = torch.int64 if self.integer else torch.float64
                return torch.tensor(cast(list[float], numbers), dtype=dtype)
        raise ValueError(expected(self.name, f"{self.wanted}, or one a row", quote(value)))


def spread(name: str, value: float | Tensor, rows: int, samples: int = 1) -> float | Tensor:
    """A setting with a number for each of `rows` * `samples` sequences; a single number stays.

    Args:
        value: as `Setting.read` returns it; with a number for each row, samples of a row share it.
    """
    if not isinstance(value, Tensor) or len(value) == rows * samples:
        return value
    if len(value) == rows:
        return value.repeat_interleave(samples)
    wanted = f"one number, or one for each of {rows} rows"
    wanted += f" or of their {rows * samples} samples" if samples > 1 else ""
    raise ValueError(expected(name, wanted, f"{len(value)} numbers"))


# Logits are in float32, and so are their products with these numbers.
TEMPERATURE = Setting(
    "temperature", "a number from 0 to 1e30", lambda x: (x >= 0) & (x <= 1e30), 1.0
)
TOP_K = Setting("top_k", "an integer of at least 1", lambda x: x >= 1, 1 << 62, integer=True)
TOP_P = Setting("top_p", "above 0 and at most 1", lambda x: (x > 0) & (x <= 1), 1.0)
MIN_P = Setting("min_p", "from 0 to 1", lambda x: (x >= 0) & (x <= 1), 0.0)
REPETITION_PENALTY = Setting(
    "repetition_penalty", "from 1e-30 to 1e30", lambda x: (x >= 1e-30) & (x <= 1e30), 1.0
)
