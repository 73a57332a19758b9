"""Which tokens may be drawn: top_k, top_p and min_p."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from linattn_models.heads.settings import MIN_P, TOP_K, TOP_P, Setting, spread

# How many of the likeliest tokens are sorted to find the end of a nucleus.
_LIKELY = 256
# Halvings of the interval [0, 1] of probabilities, which is then shorter than 1e-12.
_HALVINGS = 40


@dataclass(frozen=True, eq=False)
class Filters:
    """Excludes unlikely tokens before one is drawn; None switches a filter off.

    Args:
        top_k, top_p, min_p: as defined by `linattn_core.decoder_spec.Draw`; a number for all rows,
            or one for each.
    """

    top_k: Any = None  # int, a number of each row (B,), or None
    top_p: Any = None
    min_p: Any = None

    def __post_init__(self) -> None:
        for setting in (TOP_K, TOP_P, MIN_P):
            value = getattr(self, setting.name)
            if value is not None:
                object.__setattr__(self, setting.name, setting.read(value))

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.top_k, self.top_p, self.min_p))

    def spread(self, rows: int, samples: int, device: torch.device) -> Filters:
        """The filters of `rows` * `samples` sequences, on the device."""
        return self._map(lambda name, x: cast(Tensor, spread(name, x, rows, samples)).to(device))

    def limits(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`top_k` (B,) int64, `top_p` and `min_p` (B,) float64; 0 where a filter is off.

        Args:
            like: (B,) float64.
        """
        off = torch.zeros_like(like)
        top_k, top_p, min_p = (0 if x is None else x for x in (self.top_k, self.top_p, self.min_p))
        nucleus = off + top_p
        return off.long() + top_k, nucleus.where(nucleus < 1, off), off + min_p

    def select_rows(self, rows: Tensor) -> Filters:
        """The filters of these rows."""
        return self._map(lambda _, x: x[rows])

    def put(self, places: Tensor, other: Filters, rows: int) -> Filters:
        """The filters of `rows` rows, with those of `other` in these places."""
        merged = copy(self)
        for setting in (TOP_K, TOP_P, MIN_P):
            own, new = getattr(self, setting.name), getattr(other, setting.name)
            if isinstance(own, Tensor) or isinstance(new, Tensor) or own != new:
                own, new = (setting.off if limit is None else limit for limit in (own, new))
                like = torch.int64 if setting.integer else torch.float64
                column = torch.zeros(rows, dtype=like, device=places.device) + own
                column[places] = new
                # Without a limit, no row needs more than a draw.
                limit = column if bool((column != setting.off).any()) else None
                object.__setattr__(merged, setting.name, limit)
        return merged

    def __call__(self, logits: Tensor, temperature: float | Tensor) -> Tensor:
        """The logits (B, V), -inf for tokens that are excluded.

        Args:
            temperature: of all rows, or (B, 1), above 0.

        Cost: finding the largest 256 of V; for a larger nucleus, some more passes over V.
        """
        if not isinstance(temperature, Tensor) and temperature == 0:
            return logits  # the likeliest token passes every filter
        logits = self._top(logits)
        if self._nucleus is None and self._share is None:
            return logits
        plain = not isinstance(temperature, Tensor) and temperature == 1
        scaled = logits if plain else logits / temperature
        probabilities = torch.softmax(scaled, dim=-1)
        return logits.masked_fill(probabilities < self._least(probabilities), -torch.inf)

    @property
    def _nucleus(self) -> float | Tensor | None:
        """`top_p`; None where the nucleus is all tokens."""
        return None if self._is_off(self.top_p, TOP_P) else self.top_p

    @property
    def _share(self) -> float | Tensor | None:
        """`min_p`; None where it excludes nothing."""
        return None if self._is_off(self.min_p, MIN_P) else self.min_p

    def _top(self, logits: Tensor) -> Tensor:
        """The logits with all but the `top_k` largest at -inf."""
        if isinstance(self.top_k, Tensor):
            return logits.masked_fill(logits < _smallest(logits, self.top_k), -torch.inf)
        if self.top_k is None or self.top_k >= logits.shape[-1]:
            return logits
        smallest = logits.topk(self.top_k).values[..., -1:]
        return logits.masked_fill(logits < smallest, -torch.inf)

    def _least(self, probabilities: Tensor) -> Tensor:
        """The smallest probability (B, 1) that passes."""
        least = probabilities.new_zeros(())
        if self._nucleus is not None:
            least = _nucleus_end(probabilities, _column(self._nucleus, probabilities))
        if self._share is not None:
            share = _column(self._share, probabilities)
            least = torch.maximum(least, share * probabilities.amax(-1, keepdim=True))
        return least

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> Filters:
        mapped = copy(self)  # a new one would read its limits, which brings them to the CPU
        for field in fields(self):
            limit = getattr(self, field.name)
            if isinstance(limit, Tensor):
                object.__setattr__(mapped, field.name, change(field.name, limit))
        return mapped

    @staticmethod
    def _is_off(limit: float | Tensor | None, setting: Setting) -> bool:
        return limit is None or (not isinstance(limit, Tensor) and limit == setting.off)


def _column(limit: float | Tensor, like: Tensor) -> float | Tensor:
    """A limit that broadcasts over rows, (B, 1) with the dtype of `like`, if rows differ."""
    return limit.unsqueeze(-1).to(like.dtype) if isinstance(limit, Tensor) else limit


def _smallest(logits: Tensor, top_k: Tensor) -> Tensor:
    """The smallest logit (B, 1) of each row's `top_k` (B,) largest; -inf where all tokens pass."""
    limited = top_k < logits.shape[-1]
    ranks = torch.where(limited, top_k, 1)
    ranked = logits.topk(int(ranks.max())).values
    smallest = ranked.gather(-1, (ranks - 1).unsqueeze(-1))
    return smallest.masked_fill(~limited.unsqueeze(-1), -torch.inf)


def _nucleus_end(probabilities: Tensor, top_p: float | Tensor) -> Tensor:
    """The probability (B, 1) of the least likely token of each nucleus; 0 for a top_p of 1."""
    likeliest = probabilities.topk(min(_LIKELY, probabilities.shape[-1])).values
    least = _last_before(likeliest, top_p)
    if probabilities.shape[-1] > _LIKELY:
        is_large = (likeliest.sum(-1, keepdim=True) < top_p) & (top_p < 1)
        rows = is_large.squeeze(1).nonzero().squeeze(1)
        if len(rows):
            own = top_p[rows] if isinstance(top_p, Tensor) else top_p
            least[rows] = _large_nucleus_end(probabilities[rows], own, likeliest[rows, -1:])
    return least.masked_fill(top_p == 1, 0) if isinstance(top_p, Tensor) else least


def _large_nucleus_end(probabilities: Tensor, top_p: float | Tensor, high: Tensor) -> Tensor:
    """As `_nucleus_end`, for rows in which the tokens above `high` (B, 1) sum to less than top_p.

    Halves the interval that contains the result until few tokens are inside, and sorts those.
    """
    low = torch.zeros_like(high)
    for _ in range(_HALVINGS):
        between = (probabilities > low) & (probabilities <= high)
        if (between.sum(-1) <= _LIKELY).all():
            break
        middle = (low + high) / 2
        inside = _mass(probabilities.clone(), probabilities <= middle) < top_p
        high, low = torch.where(inside, middle, high), torch.where(inside, low, middle)
    above = probabilities > high
    rest = probabilities.masked_fill(above, 0).topk(_LIKELY).values
    return _last_before(rest, top_p - _mass(probabilities, ~above))


def _last_before(ordered: Tensor, most: float | Tensor) -> Tensor:
    """The last of descending numbers (B, K) before which the sum is below `most`, or the first."""
    before = ordered.cumsum(-1) - ordered
    last = ordered.masked_fill(before >= most, torch.inf).amin(-1, keepdim=True)
    return last.minimum(ordered[:, :1])


def _mass(probabilities: Tensor, left_out: Tensor) -> Tensor:
    """The sum (B, 1) of the probabilities (B, V) not in `left_out`; overwrites them."""
    return probabilities.masked_fill_(left_out, 0).sum(-1, keepdim=True)
