"""Which tokens may be drawn: the k likeliest, the nucleus, those not far below the likeliest."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected, shown
from linattn_models.validation import at_least

# Tokens among which the nucleus is looked for before all of them are sorted.
_LIKELY = 256


@dataclass(frozen=True)
class Filters:
    """Leaves out unlikely tokens before one is drawn; None leaves out none.

    Args:
        top_k: draws from the `top_k` likeliest tokens, more where several are as likely.
        top_p: draws from the nucleus: the fewest likeliest tokens whose probabilities sum to at
            least `top_p`, above 0 and at most 1.
        min_p: draws from tokens at least `min_p` times as likely as the likeliest, from 0 to 1.

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
        """The logits (B, V) with those of tokens that are left out at -inf.

        Cost: that of the largest 256 of V; for a nucleus of more tokens that of sorting V.
        """
        if temperature == 0:  # the likeliest token passes every filter
            return logits
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            smallest = logits.topk(self.top_k).values[..., -1:]
            logits = logits.masked_fill(logits < smallest, -torch.inf)
        if self.top_p is None and self.min_p is None:
            return logits
        probabilities = torch.softmax(logits / temperature, dim=-1)
        return logits.masked_fill(probabilities < self._least(probabilities), -torch.inf)

    def _least(self, probabilities: Tensor) -> Tensor:
        """The smallest probability (B, 1) that passes."""
        least = probabilities.new_zeros(())
        if self.top_p is not None:
            least = nucleus(probabilities, self.top_p)
        if self.min_p is not None:
            least = torch.maximum(least, self.min_p * probabilities.amax(-1, keepdim=True))
        return least


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """The probability (B, 1) of the least likely token of each row's nucleus."""
    vocabulary = probabilities.shape[-1]
    count = min(_LIKELY, vocabulary)
    likeliest = probabilities.topk(count).values
    if count < vocabulary and not (likeliest.sum(-1) >= top_p).all():
        likeliest = probabilities.sort(descending=True).values
    before = likeliest.cumsum(-1) - likeliest
    return likeliest.masked_fill(before >= top_p, torch.inf).amin(-1, keepdim=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
