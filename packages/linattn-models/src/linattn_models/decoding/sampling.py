"""How a token is drawn from a model's outputs: filters, temperature, generator; checks for NaN."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from linattn_core.errors import expected, quote
from linattn_models.heads import Categorical, Head
from linattn_models.heads.base import at_least_single, check_generator, resolve_temperature
from linattn_models.validation import fields_at_least

# How many of the likeliest tokens are sorted to find the end of a nucleus.
_LIKELY = 256
# Halvings of the interval [0, 1] of probabilities, which is then shorter than 1e-12.
_HALVINGS = 40
# After so many steps on an accelerator their outputs are checked, because a stream may be endless.
_MOST_UNREAD = 4096


@dataclass(frozen=True)
class Filters:
    """Excludes unlikely tokens before one is drawn; None switches a filter off.

    Args:
        top_k, top_p, min_p: as defined by `linattn_core.decoder_spec.TokenFilters`.

    Raises:
        ValueError: a number out of its range.
    """

    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if self.top_k is not None:
            fields_at_least(self, 1, "top_k")
        if self.top_p is not None and not (_is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(expected("top_p", "above 0 and at most 1", quote(self.top_p)))
        if self.min_p is not None and not (_is_number(self.min_p) and 0 <= self.min_p <= 1):
            raise ValueError(expected("min_p", "from 0 to 1", quote(self.min_p)))

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
        scaled = logits if temperature == 1 else logits / temperature
        probabilities = torch.softmax(scaled, dim=-1)
        return logits.masked_fill(probabilities < self._least(probabilities), -torch.inf)

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
            least = _nucleus_end(probabilities, self._nucleus)
        if self.min_p:
            least = torch.maximum(least, self.min_p * probabilities.amax(-1, keepdim=True))
        return least


@dataclass(frozen=True)
class Sampling:
    """The settings of a draw.

    Args:
        temperature: as for `generate`. Values below 1e-30 count as 0.
        generator: source of randomness, on the model's device; torch's default one by default.
        filters: the tokens that may be drawn.

    Raises:
        ValueError, TypeError: a negative temperature; a generator that is not a torch.Generator.
    """

    temperature: float = 1.0
    generator: torch.Generator | None = None
    filters: Filters = field(default_factory=Filters)

    def __post_init__(self) -> None:
        check_generator(self.generator)
        object.__setattr__(self, "temperature", resolve_temperature(self.temperature))

    def check(self, head: Head, device: torch.device) -> None:
        """Refuses a generator of another kind of device, and filters for a head without logits."""
        if self.generator is not None and self.generator.device.type != device.type:
            wanted = f"one on the model's {device}"
            advice = f"make it by torch.Generator('{device}')"
            raise ValueError(expected("generator", wanted, self.generator.device, advice))
        if self.filters and not isinstance(head, Categorical):
            got = f"a {type(head).__name__}"
            advice = "leave out top_k, top_p and min_p"
            raise ValueError(expected("the head", "a Categorical to filter", got, advice))

    def draw(self, head: Head, parameters: Tensor) -> Tensor:
        """Tokens (B,) or (B, 3) from parameters (B, P)."""
        if self.filters:
            parameters = self.filters(at_least_single(parameters), self.temperature)
        return head.sample(parameters, temperature=self.temperature, generator=self.generator)


class NanCheck:
    """Raises ValueError for parameters that are NaN, and names the first such step.

    On the CPU at once. On an accelerator only after many steps or at the end, because reading a
    number at each step would wait for the device each time.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._largest: list[Tensor] = []  # of the last steps

    def add(self, parameters: Tensor) -> None:
        """Takes the parameters (B, P) of the next step."""
        largest = parameters.amax()  # NaN if any parameter is
        if not parameters.is_cpu:
            self._largest.append(largest)
        elif math.isnan(largest):
            _refuse(self._steps)
        self._steps += 1
        if len(self._largest) == _MOST_UNREAD:
            self.finish()

    def finish(self) -> None:
        """Checks the steps that are not checked yet."""
        if self._largest:
            first = self._steps - len(self._largest)
            for step, largest in enumerate(torch.stack(self._largest).tolist(), first):
                if math.isnan(largest):
                    _refuse(step)
            self._largest.clear()


def _refuse(step: int) -> None:
    advice = "look for NaN in the model's weights"
    raise ValueError(expected(f"the model's outputs at step {step}", "numbers", "NaN", advice))


def _nucleus_end(probabilities: Tensor, top_p: float) -> Tensor:
    """The probability (B, 1) of the least likely token of each row's nucleus, for top_p below 1."""
    likeliest = probabilities.topk(min(_LIKELY, probabilities.shape[-1])).values
    least = _last_before(likeliest, top_p)
    if probabilities.shape[-1] > _LIKELY:
        rows = (likeliest.sum(-1) < top_p).nonzero().squeeze(1)
        if len(rows):
            least[rows] = _large_nucleus_end(probabilities[rows], top_p, likeliest[rows, -1:])
    return least


def _large_nucleus_end(probabilities: Tensor, top_p: float, high: Tensor) -> Tensor:
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
    """The last of the descending numbers (B, K) before which the sum is less than `most`: (B, 1).

    If rounding leaves none, the first number.
    """
    before = ordered.cumsum(-1) - ordered
    last = ordered.masked_fill(before >= most, torch.inf).amin(-1, keepdim=True)
    return last.minimum(ordered[:, :1])


def _mass(probabilities: Tensor, left_out: Tensor) -> Tensor:
    """The sum (B, 1) of the probabilities (B, V) not in `left_out`; overwrites them."""
    return probabilities.masked_fill_(left_out, 0).sum(-1, keepdim=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
