"""Which tokens may be drawn: top_k, top_p (the nucleus) and min_p."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from linattn_core.decoding import Draw
from linattn_core.errors import expected, shown
from linattn_models.heads.base import Drawn
from linattn_models.validation import at_least

# How many of the likeliest tokens are sorted to find the end of a nucleus.
_LIKELY = 256
# Halvings of the interval [0, 1] of probabilities, which is then shorter than 1e-12.
_HALVINGS = 40


@dataclass(frozen=True)
class Filters:
    """Excludes unlikely tokens before one is drawn; None switches a filter off.

    Args:
        top_k: keeps the `top_k` likeliest tokens, and those equally likely as the last of them.
        top_p: keeps the nucleus: the fewest likeliest tokens whose probabilities sum to at least
            `top_p`, above 0 and at most 1.
        min_p: keeps tokens at least `min_p` times as likely as the likeliest, from 0 to 1.

    Probabilities are softmax(logits / temperature); `top_p` and `min_p` see them after `top_k`.

    Raises:
        ValueError: a number out of its range.
    """

    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if self.top_k is not None:
            at_least("top_k", self.top_k, 1)
        if self.top_p is not None and not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(expected("top_p", "above 0 and at most 1", shown(self.top_p)))
        if self.min_p is not None and not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise ValueError(expected("min_p", "from 0 to 1", shown(self.min_p)))

    def __bool__(self) -> bool:
        return any(limit is not None for limit in (self.top_k, self.top_p, self.min_p))

    def __call__(self, logits: Tensor, temperature: float) -> Tensor:
        """The logits (B, V), -inf for tokens that are excluded.

        Cost: finding the largest 256 of V; for a larger nucleus, some more passes over V.
        """
        if temperature == 0:  # the likeliest token passes every filter
            return logits
        logits = self._top(logits)
        if self._nucleus is None and not self.min_p:
            return logits
        probabilities = torch.softmax(_at_temperature(logits, temperature), dim=-1)
        return logits.masked_fill(probabilities < self._least(probabilities), -torch.inf)

    def redraw(self, head: Drawn, logits: Tensor, draw: Draw, tokens: Tensor) -> Tensor:
        """Corrects tokens that were drawn without filters, with the same random numbers.

        A draw gives every token of a row a random score and takes the highest; with filters, it
        takes the highest that passes. Most tokens pass, and checking one token costs less than
        finding all that pass: only rows whose token fails are drawn again.

        Args:
            logits: (B, V).
            draw: the random numbers with which the head chose the tokens.
            tokens: (B,) int64; overwritten.

        Returns:
            (B,) int64, the tokens that a draw from the filtered logits would give.

        Cost: a few reads of the logits; for rows that fail, the cost of filtering their logits.
        """
        if draw.waits is None:  # the likeliest token passes every filter
            return tokens
        if not logits.is_cpu:  # finding the rows that fail would wait for the device
            return head.choose(self(logits, draw.temperature), draw)
        rows = self._failed(logits, draw.temperature, tokens)
        if len(rows):
            again = Draw(draw.temperature, draw.waits[rows], None)
            tokens[rows] = head.choose(self(logits[rows], draw.temperature), again)
        return tokens

    @property
    def _nucleus(self) -> float | None:
        """`top_p`; None where the nucleus is all tokens."""
        return None if self.top_p == 1 else self.top_p

    def _top(self, logits: Tensor) -> Tensor:
        """The logits with all but the `top_k` largest at -inf."""
        if self.top_k is None or self.top_k >= logits.shape[-1]:
            return logits
        smallest = logits.topk(self.top_k).values[..., -1:]
        return logits.masked_fill(logits < smallest, -torch.inf)

    def _least(self, probabilities: Tensor) -> Tensor:
        """The smallest probability (B, 1) that passes."""
        least = probabilities.new_zeros(())
        if self._nucleus is not None:
            least = nucleus(probabilities, self._nucleus)
        if self.min_p:
            least = torch.maximum(least, self.min_p * probabilities.amax(-1, keepdim=True))
        return least

    def _failed(self, logits: Tensor, temperature: float, tokens: Tensor) -> Tensor:
        """The rows (R,) int64 whose token is excluded."""
        own = logits.gather(1, tokens.unsqueeze(1))  # (B, 1)
        failed = own == -torch.inf
        if self.top_k is not None:
            failed |= (logits > own).sum(-1, keepdim=True) >= self.top_k
        if self._nucleus is not None:
            probabilities = torch.softmax(_at_temperature(self._top(logits), temperature), dim=-1)
            failed |= _mass(probabilities, logits <= own) >= self._nucleus
        if self.min_p:
            least = logits.amax(-1, keepdim=True) + temperature * math.log(self.min_p)
            failed |= own < least
        return failed.nonzero()[:, 0]


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The probability (B, 1) of the least likely token of each row's nucleus, for top_p below 1."""
    likeliest = probabilities.topk(min(_LIKELY, probabilities.shape[-1])).values
    least = _last_before(likeliest, top_p)
    if probabilities.shape[-1] > _LIKELY:
        rows = (likeliest.sum(-1) < top_p).nonzero().squeeze(1)
        if len(rows):
            least[rows] = _large_nucleus(probabilities[rows], top_p, likeliest[rows, -1:])
    return least


def _large_nucleus(probabilities: Tensor, top_p: float, high: Tensor) -> Tensor:
    """As `nucleus`, for rows in which the tokens above `high` (B, 1) sum to less than top_p.

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
    """The last of the descending numbers (B, K) before which the sum is less than `most`: (B, 1).

    If rounding leaves none, the first number.
    """
    before = ordered.cumsum(-1) - ordered
    last = ordered.masked_fill(before >= most, torch.inf).amin(-1, keepdim=True)
    return last.minimum(ordered[:, :1])


def _mass(probabilities: Tensor, left_out: Tensor) -> Tensor:
    """The sum (B, 1) of the probabilities (B, V) not in `left_out`; overwrites them."""
    return probabilities.masked_fill_(left_out, 0).sum(-1, keepdim=True)


def _at_temperature(logits: Tensor, temperature: float) -> Tensor:
    return logits if temperature == 1 else logits / temperature


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
