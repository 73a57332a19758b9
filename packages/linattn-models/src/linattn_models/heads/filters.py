"""Which tokens may be drawn: top_k, top_p and min_p."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from torch import Tensor

from linattn_models.heads.base import LEAST_TEMPERATURE
from linattn_models.heads.settings import MIN_P, TOP_K, TOP_P, spread

# How many of the likeliest tokens are sorted first.
_LIKELY = 256


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

        Cost: finding the largest 256 of V; for a larger nucleus, sorting them.
        """
        if not self or (not isinstance(temperature, Tensor) and temperature == 0):
            return logits  # the likeliest token passes every filter
        column = (logits.new_zeros(len(logits), 1, dtype=torch.float64) + temperature).squeeze(1)
        return keep_likely(logits, column, *self.limits(column))

    def _map(self, change: Callable[[str, Tensor], Tensor]) -> Filters:
        mapped = copy(self)  # a new one would read its limits, which brings them to the CPU
        for field in fields(self):
            limit = getattr(self, field.name)
            if isinstance(limit, Tensor):
                object.__setattr__(mapped, field.name, change(field.name, limit))
        return mapped


def keep_likely(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    *,
    sorts: bool = False,
) -> Tensor:
    """The logits (B, V), -inf for tokens that the limits of their row exclude.

    Args:
        temperature, top_k, top_p, min_p: (B,), as in `linattn_core.decoder_spec.Draw`.
        sorts: whether to sort all logits, which reads no number from the device, so that a CUDA
            graph can repeat it. Otherwise the likeliest are sorted, if they decide.
    """
    vocabulary, greedy = logits.shape[-1], temperature < LEAST_TEMPERATURE
    k, p, share = (x.unsqueeze(-1) for x in (top_k, top_p, min_p))  # (B, 1)
    k = torch.where(k > 0, k, vocabulary).clamp(max=vocabulary)
    degrees = temperature.masked_fill(greedy, 1.0).to(logits.dtype).unsqueeze(-1)
    ordered = logits.topk(vocabulary if sorts else min(_LIKELY, vocabulary)).values
    if not sorts and not _decide(ordered, logits, degrees, k, p):
        ordered = logits.topk(vocabulary).values
    smallest = ordered.gather(-1, k.clamp(max=ordered.shape[-1]) - 1)
    logits = logits.masked_fill((logits < smallest) & (k < vocabulary), -torch.inf)
    least = ordered[:, :1] + degrees * share.to(logits.dtype).log()
    if sorts or bool((p > 0).any()):
        probabilities = _probabilities(ordered, logits, degrees)
        before = probabilities.cumsum(-1) - probabilities
        last = ordered.masked_fill(before >= p, torch.inf).amin(-1, keepdim=True)
        least = torch.where(p > 0, least.maximum(last), least)
    return logits.masked_fill(logits < least, -torch.inf)


def _decide(ordered: Tensor, logits: Tensor, degrees: Tensor, k: Tensor, p: Tensor) -> bool:
    """Whether the tokens that every row's limits end at are among those ordered."""
    ends_here = k <= ordered.shape[-1]
    if bool(ends_here.all()):
        return True
    reaches = _probabilities(ordered, logits, degrees).sum(-1, keepdim=True) >= p
    return bool((ends_here | ((k == logits.shape[-1]) & reaches)).all())


def _probabilities(some: Tensor, logits: Tensor, degrees: Tensor) -> Tensor:
    """Of some of the logits, among all that are not excluded."""
    return (some / degrees - (logits / degrees).logsumexp(-1, keepdim=True)).exp()
